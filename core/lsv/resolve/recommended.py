"""The sampling parameters that a checkpoint recommends as defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lsv.request.params import RECOMMENDABLE
from lsv.resolve.locate import read_object

FILE = "generation_config.json"
ORIGIN = "sampling_origin"
"""A key of the file that names the source, if it is not the checkpoint's author."""


def read_recommended(folder: str | Path) -> dict[str, Any]:
    """The sampling parameters of a folder's generation_config.json; empty for no folder."""
    found = _read(folder)
    return {name: found[name] for name in RECOMMENDABLE if found.get(name) is not None}


def read_origin(folder: str | Path) -> str:
    """The source of these parameters, in words for the log."""
    return str(_read(folder).get(ORIGIN) or f"recommended by the checkpoint's {FILE}")


def _read(folder: str | Path) -> dict[str, Any]:
    return dict(read_object(Path(folder) / FILE) or {}) if folder else {}
