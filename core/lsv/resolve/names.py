"""The names that clients call a model by."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from lsv.offers import ModelAlias
from lsv.plugins.catalog import Catalog

_HUB_FOLDER = re.compile(r"models--(?P<name>.+)/snapshots/[^/]+$")
"""Where Hugging Face's library keeps a repository."""
_PART = re.compile(r"-\d{5}-of-\d{5}$")
"""The end of a stem whose file is one of several."""


class Names(TypedDict):
    """Fields of ``EngineConfig``."""

    served_names: tuple[str, ...]
    unlisted_names: tuple[str, ...]


def choose_names(given: Sequence[str] | None, model: str, catalog: Catalog) -> Names:
    """The given names, or the model's own.

    A path would be unreadable as a name and would show clients where the server has its files. A file is called by its
    stem and a folder by its name, while the path is accepted too.
    """
    if given:
        return Names(served_names=tuple(given), unlisted_names=())
    alias = any(offer.name == model for offer in catalog.offers(ModelAlias))
    name = model if alias else _name_of(model)
    return Names(served_names=(name,), unlisted_names=() if name == model else (model,))


def _name_of(model: str) -> str:
    """The name of a file or folder; what is none of them is the name of a repository already."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    place = Path(os.path.abspath(path))  # links are not followed: their names were chosen to be read
    if path.is_file():
        return _PART.sub("", place.stem) or model
    repository = _HUB_FOLDER.search(place.as_posix())
    return repository["name"].replace("--", "/") if repository else place.name or model
