"""Where a model's files are: an alias of a plugin, a folder, a file, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.errors import CheckpointError, ConfigError
from lsv.offers import CheckpointOffer, ModelAlias, load_object
from lsv.plugins.catalog import Catalog

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "vocab.txt", "merges.txt")
_SAVED_BY_TORCH = ("pytorch_model*.bin", "model*.bin")
"""Weights of repositories that have no safetensors."""
_TWICE = ("consolidated*", "original/*", "onnx/*", "openvino/*", "coreml/*")
"""The same weights again, in forms that other programs read."""


def default_model(catalog: Catalog) -> str:
    """The alias that is served when no model is named. Raises ``ConfigError`` where no plugin ships one."""
    for alias in catalog.offers(ModelAlias):
        if alias.default:
            return alias.name
    raise ConfigError("no model was named and no plugin ships a default one: use lsv serve PATH", param="model")


def locate_model(
    name: str,
    catalog: Catalog,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    ignore: Sequence[str] = (),
) -> Path:
    """The local folder of a model. Only a Hub name (``org/name``) that is not a folder goes to the network.

    ``ignore`` are patterns of files that are not fetched then. Raises ``CheckpointError`` for a name that is none of
    these, a file of an unknown format, and a model that can't be fetched.
    """
    for alias in catalog.offers(ModelAlias):
        if alias.name == name:
            return Path(alias.locate())
    path = Path(name).expanduser()
    if path.exists():
        return _prepare(path.resolve(), catalog)
    if _HUB_NAME.fullmatch(name):
        return _download(name, revision, download_dir, ignore)
    known = ", ".join(alias.name for alias in catalog.offers(ModelAlias)) or "none"
    raise CheckpointError(
        f"there is no folder {name}; give a folder, a Hub name like org/model, or one of: {known}", param="model"
    )


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


def _download(name: str, revision: str | None, download_dir: str | None, ignore: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    def fetch(patterns: Sequence[str]) -> Path:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=download_dir,
            allow_patterns=list(patterns),
            ignore_patterns=[*_TWICE, *ignore],
        )
        return Path(folder)

    try:
        folder = fetch(_HUB_FILES)
        return folder if any(folder.glob("*.safetensors")) else fetch((*_HUB_FILES, *_SAVED_BY_TORCH))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as cause:
        raise CheckpointError(
            f"{name} is not a local folder and could not be fetched from the Hub ({type(cause).__name__}); "
            "check the name and the network, or give a local folder",
            param="model",
        ) from cause


def read_config(folder: Path, overrides: Mapping[str, Any], name: str = "config.json") -> dict[str, Any]:
    """config.json, or another file of the kind, with ``overrides`` laid over it (nested mappings are merged).

    Raises ``CheckpointError`` where there is none, or it does not hold a JSON object.
    """
    file = folder / name
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {name}: it is not a model checkpoint", param="model") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise CheckpointError(f"{file} is not valid JSON: {cause}", param="model") from cause
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} must hold a JSON object", param="model")
    return merge(config, overrides)


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``overrides`` laid over it, mapping by mapping."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged
