"""Repositories of models: the Hugging Face Hub, or ModelScope; what is fetched of one, and what is left there."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lsv_base.errors import CheckpointError, ConfigError

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "vocab.txt", "merges.txt")
_CODE = ("*.py", "*.tiktoken")
"""What code of tokenizers and configs is, and reads."""
SAVED_BY_TORCH = ("pytorch_model*.bin", "model*.bin")
"""Weights of repositories that have no safetensors."""
_TWICE = ("consolidated*", "original/*", "onnx/*", "openvino/*", "coreml/*")
"""The same weights again, in forms that other programs read."""

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+)|/([\w./-]+))")
"""``org/name:VARIANT`` or ``org/name/path/of/file``."""
_SPLIT = re.compile(r"-\d{5}-of-\d{5}(?=\.\w+$)")

Fetch = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Hub:
    """Where repositories are, and which part of them is wanted."""

    revision: str | None = None
    """Branch, tag or commit; None is the repository's default."""
    download_dir: str | None = None
    """Where they are kept; None is the place of the library that fetches them."""
    ignore: Sequence[str] = ()
    """Patterns of files that are not fetched."""
    modelscope: bool = False
    """Whether they are ModelScope's."""
    code: bool = False
    """Whether code is fetched, too, to be run in a side process."""
    pickled: bool = False
    """Whether weights that torch has saved are wanted where there are safetensors, too."""

    @property
    def name(self) -> str:
        return "ModelScope" if self.modelscope else "the Hub"


def is_name(name: str) -> bool:
    """Whether a model's name may be that of a repository, ``org/name``."""
    return _NAME.fullmatch(name) is not None


def fetch(name: str, hub: Hub) -> Path:
    """The folder of a repository's config, tokenizer and weights. Raises ``CheckpointError``."""
    files = (*_FILES, *(_CODE if hub.code else ()))
    if hub.pickled:
        return _fetch(name, hub, [*(one for one in files if one != "*.safetensors"), *SAVED_BY_TORCH])
    folder = _fetch(name, hub, files)
    return folder if any(folder.glob("*.safetensors")) else _fetch(name, hub, (*files, *SAVED_BY_TORCH))


def fetch_code(name: str, hub: Hub) -> Path:
    """The folder of a repository's code alone. Raises ``CheckpointError``."""
    return _fetch(name, hub, _CODE)


def fetch_file(name: str, formats: Sequence[str], hub: Hub, beside: Sequence[str] = ()) -> Path | None:
    """The only model that ``org/name:VARIANT`` or ``org/name/file`` stands for: its file, or the first of its parts.

    ``formats`` are patterns of files that are models by themselves, such as ``*.ggml``, and ``beside`` those of files
    that are not. None for a name of another form. Raises ``CheckpointError`` where there is none of this name, or more
    than one.
    """
    match = _PART.fullmatch(name)
    if match is None or not formats:
        return None
    repository, variant, file = match.groups()
    if file is not None and not any(fnmatch.fnmatch(file, one) for one in formats):
        return None
    wanted = [file] if file else [one for suffix in formats for one in _of_variant(variant, suffix.removeprefix("*"))]
    if file:
        wanted.append(_SPLIT.sub("-?????-of-?????", file))
    others = () if file else beside
    return _only_model(name, _fetch(repository, hub, wanted, others), wanted, others)


def _of_variant(variant: str, suffix: str) -> list[str]:
    """Patterns of the files of a variant, such as ``Q4_K_M``, whole or in parts."""
    spellings = dict.fromkeys((variant, variant.upper(), variant.lower()))
    return [f"*[-.]{one}{end}{suffix}" for one in spellings for end in ("", "-?????-of-?????")]


def _only_model(name: str, folder: Path, wanted: Sequence[str], others: Sequence[str]) -> Path:
    places = (str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    found = sorted(place for place in places if _fits(place, wanted) and not _fits(place, others))
    models = {_SPLIT.sub("", place) for place in found}
    if len(models) != 1:
        has = (
            f"stands for several models: {', '.join(sorted(models))}" if models else "is none of the repository's files"
        )
        raise CheckpointError(f"{name} {has}; name one by its file, as in org/name/file", param="model")
    return folder / found[0]


def _fits(place: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(place, one) for one in patterns)


def _fetch(name: str, hub: Hub, wanted: Sequence[str], others: Sequence[str] = ()) -> Path:
    load, kept_out, given = _library(hub), [*_TWICE, *hub.ignore, *others], {}
    if hub.revision is not None:
        given["revision"] = hub.revision
    try:
        return Path(load(name, cache_dir=hub.download_dir, allow_patterns=[*wanted], ignore_patterns=kept_out, **given))
    except Exception as cause:  # of two libraries, which raise whatever they meet on the way
        raise CheckpointError(
            f"{name} is not a local folder and could not be fetched from {hub.name} ({type(cause).__name__}); "
            "check the name and the network, or give a local folder",
            param="model",
        ) from cause


def _library(hub: Hub) -> Fetch:
    """``snapshot_download`` of the library that knows a hub. Raises ``ConfigError`` where it is not installed."""
    try:
        library: Any = import_module("modelscope" if hub.modelscope else "huggingface_hub")
    except ImportError as cause:
        if not hub.modelscope:
            raise
        raise ConfigError(
            "models of ModelScope (--use-modelscope, VLLM_USE_MODELSCOPE) are fetched by its own library, which can't "
            f"be imported ({cause}): pip install modelscope",
            param="use_modelscope",
        ) from cause
    return library.snapshot_download  # type: ignore[no-any-return]
