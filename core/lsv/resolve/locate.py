"""Locates a model's files (an alias of a plugin, a folder, a file, or a repository of a hub), and names the model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from lsv.offers import CheckpointOffer, ModelAlias, load_object
from lsv.plugins.catalog import Catalog
from lsv.resolve.hub import Hub, fetch, fetch_file, is_name
from lsv_base.errors import CheckpointError, ConfigError
from lsv_base.untrusted.files import read_text

_HUB_FOLDER = re.compile(r"models--(?P<name>.+)/snapshots/[^/]+$")
"""Where Hugging Face's library keeps a repository."""
_PART = re.compile(r"-\d{5}-of-\d{5}$")
"""The end of the stem of a file that is one of several."""

_LANGUAGE_KEYS = ("text_config", "llm_config", "language_config")
"""What config.json calls the configuration of the language model in a checkpoint that has more."""
_WRITER = "thinker_config"
_NAMES = ("architectures", "model_type")


def default_model(catalog: Catalog) -> str:
    """The alias that is served when no model is named. Raises ``ConfigError`` where no plugin ships one."""
    for alias in catalog.offers(ModelAlias):
        if alias.default:
            return alias.name
    raise ConfigError("no model was named and no plugin ships a default one: use lsv serve PATH", param="model")


def locate_model(name: str, catalog: Catalog, hub: Hub = Hub()) -> Path:  # noqa: B008 - a frozen record
    """The local folder of a model. Only a repository's name (``org/name``) that is not a folder goes to the network,
    and that of a file in one (``org/name:VARIANT``, ``org/name/file``).

    Raises ``CheckpointError`` for a name that is none of these, a file of an unknown format, and a model that can't be
    fetched.
    """
    for alias in catalog.offers(ModelAlias):
        if alias.name == name:
            return Path(alias.locate())
    path = Path(name).expanduser()
    if path.exists():
        return _prepare(path.resolve(), catalog)
    if is_name(name):
        return _check_fetched(name, fetch(name, hub), catalog)
    beside = [offer.beside for offer in catalog.offers(CheckpointOffer) if offer.beside]
    file = fetch_file(name, _single_files(catalog), hub, beside)
    if file is not None:
        return _prepare(file, catalog)
    known = ", ".join(alias.name for alias in catalog.offers(ModelAlias)) or "none"
    raise CheckpointError(
        f"there is no folder {name}; give a folder, a Hub name like org/model, or one of: {known}", param="model"
    )


def _single_files(catalog: Catalog) -> list[str]:
    """Patterns of files that are models by themselves."""
    return [offer.single_files for offer in catalog.offers(CheckpointOffer) if offer.single_files]


def _check_fetched(name: str, folder: Path, catalog: Catalog) -> Path:
    """A fetched folder. Raises ``CheckpointError`` where it is of a repository of single files, one to a variant."""
    single = _single_files(catalog)
    if single and not (folder / "config.json").is_file() and not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"the repository {name} has no config.json; where it holds files of the form {', '.join(single)}, "
            f"name one: {name}:VARIANT (such as Q4_K_M), or {name}/FILE",
            param="model",
        )
    return folder


def _prepare(path: Path, catalog: Catalog) -> Path:
    """The folder of a checkpoint: itself, or what its format makes of it."""
    for offer in catalog.offers(CheckpointOffer):
        if offer.prepare is not None and offer.recognises(str(path)):
            return Path(load_object(offer.prepare)(str(path)))
    if path.is_dir():
        return path
    raise CheckpointError(
        f"{path} is a file of no known format; a checkpoint is a folder with config.json and *.safetensors",
        param="model",
    )


def read_config(folder: Path, overrides: Mapping[str, Any], name: str = "config.json") -> dict[str, Any]:
    """config.json, or another file of the kind, with ``overrides`` laid over it (nested mappings are merged).

    Of a model that also speaks it is what the part that writes text goes by (``thinker_config``), in both.

    Raises ``CheckpointError`` where there is none, or it does not hold a JSON object.
    """
    config = read_object(folder / name)
    if config is None:
        raise CheckpointError(f"{folder} has no {name}: it is not a model checkpoint", param="model")
    return merge(_writer(config), _writer(overrides))


def _writer(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the object of the part that writes text laid over what is said of the whole, which keeps its names."""
    own = config.get(_WRITER)
    if not isinstance(own, Mapping):
        return config
    whole = {key: value for key, value in config.items() if key != _WRITER}
    return {**whole, **own, **{key: whole[key] for key in _NAMES if key in whole}}


def language_of(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Where the config.json of a checkpoint with towers has what is about its language model: the key and what it
    holds, which is empty where the whole file is about that. Raises ``CheckpointError`` where it is no object.
    """
    key = next((key for key in _LANGUAGE_KEYS if config.get(key)), _LANGUAGE_KEYS[0])
    found = config.get(key) or {}
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json: {key} must be an object, got {found!r:.100}", param="model")
    return key, found


def read_vocab_size(config: Mapping[str, Any]) -> int | None:
    """Size of the model's vocabulary by config.json; None if it does not say, or source and target differ."""
    if "src_vocab_size" in config:
        return None
    found = language_of(config)[1].get("vocab_size", config.get("vocab_size"))
    return found if type(found) is int else None


def read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object that a file of a checkpoint holds, or None where there is no such file.

    Raises ``CheckpointError`` where it holds anything else.
    """
    try:
        content = json.loads(read_text(file))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise CheckpointError(f"{file} is not valid JSON: {cause}", param="model") from cause
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} must hold a JSON object", param="model")
    return content


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``overrides`` laid over it, mapping by mapping."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


class Names(TypedDict):
    """Fields of ``EngineConfig``."""

    served_names: tuple[str, ...]
    unlisted_names: tuple[str, ...]


def choose_names(given: Sequence[str] | None, model: str, catalog: Catalog) -> Names:
    """The given names, or the model's own.

    A path is unreadable as a name and would reveal the server's folders to clients. So a file is called by its stem and
    a folder by its name. Requests may still use the path.
    """
    if given:
        return Names(served_names=tuple(given), unlisted_names=())
    alias = any(offer.name == model for offer in catalog.offers(ModelAlias))
    name = model if alias else _name_of(model)
    return Names(served_names=(name,), unlisted_names=() if name == model else (model,))


def _name_of(model: str) -> str:
    """The name of a file or folder; anything else is the name of a repository already."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    place = Path(os.path.abspath(path))  # links are not followed, because their names are usually readable
    if path.is_file():
        return _PART.sub("", place.stem) or model
    repository = _HUB_FOLDER.search(place.as_posix())
    return repository["name"].replace("--", "/") if repository else place.name or model
