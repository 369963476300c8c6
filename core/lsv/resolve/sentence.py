"""The files that sentence-transformers writes beside a checkpoint: which modules there are, and how they pool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lsv.request.pooling import PoolingKind
from lsv.resolve.locate import read_config
from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import read_regular

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_TRANSFORMERS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_MODES: Mapping[str, PoolingKind] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "sqrt",
    "pooling_mode_weightedmean_tokens": "weighted",
    "pooling_mode_lasttoken": "last",
}
_NAMED: Mapping[str, PoolingKind] = {
    "cls": "cls", "mean": "mean", "max": "max", "mean_sqrt_len_tokens": "sqrt", "weightedmean": "weighted",
    "lasttoken": "last",
}  # fmt: skip


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """What the modules after the transformer do with its states."""

    kind: PoolingKind | None = None
    normalize: bool = False
    dense: tuple[str, ...] = ()
    """Folders of linear layers, in order."""
    size: int | None = None
    """Of vectors, where a dense layer says it."""
    max_len: int | None = None
    """The most tokens of a text."""
    prompts: Mapping[str, str] = {}
    default_prompt: str = ""


def read_sentence(folder: Path) -> Sentence | None:
    """None for a checkpoint that is not of sentence-transformers.

    Raises ``CheckpointError`` for a module that is not known, and for pooling that is none of the known kinds.
    """
    if not (folder / _MODULES).is_file():
        return None
    found: dict[str, Any] = {"dense": ()}
    for place, module in enumerate(_read_modules(folder)):
        kind, path = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Pooling":
            found["kind"] = _read_kind(folder / path)
        elif kind == "Dense":
            found["dense"] += (path,)
            found["size"] = read_config(folder / path, {}).get("out_features")
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind != "Transformer" or place:
            raise CheckpointError(
                f"{folder}/{_MODULES} has a module of the type {kind:.100}, which is not known: Transformer, Pooling, "
                "Dense and Normalize are",
                param="model",
            )
    return Sentence(**found, max_len=_read_length(folder), **_read_prompts(folder))


def _read_modules(folder: Path) -> list[Mapping[str, Any]]:
    try:
        found = msgspec.json.decode(read_regular(folder / _MODULES), type=list[dict[str, Any]])
    except msgspec.DecodeError as cause:
        raise CheckpointError(f"{folder}/{_MODULES} must hold a list of modules: {cause}", param="model") from cause
    for module in found:
        path = str(module.get("path", ""))
        if path.startswith("/") or ".." in Path(path).parts:
            raise CheckpointError(f"{folder}/{_MODULES}: path {path:.100} leaves the checkpoint", param="model")
    return sorted(found, key=lambda module: int(module.get("idx", 0)) if isinstance(module.get("idx", 0), int) else 0)


def _read_kind(folder: Path) -> PoolingKind:
    config = read_config(folder, {})
    kinds = [kind for key, kind in _MODES.items() if config.get(key)]
    named = config.get("pooling_mode")
    if not kinds and named is not None:
        kinds = [_NAMED[name] for name in (named if isinstance(named, list) else [named]) if name in _NAMED]
    if len(kinds) != 1:
        told = " and ".join(kinds) or "no kind that is known"
        raise CheckpointError(
            f"{folder}/config.json pools by {told}: one of {', '.join(_NAMED)} is taken", param="model"
        )
    return kinds[0]


def _read_length(folder: Path) -> int | None:
    file = next((name for name in _TRANSFORMERS if (folder / name).is_file()), None)
    if file is None:
        return None
    config = read_config(folder, {}, file)
    if config.get("do_lower_case") and not _lowers(folder):
        raise CheckpointError(
            f"{folder}/{file} has do_lower_case, which is the tokenizer's to do: set it false, and lowercase there",
            param="model",
        )
    length = config.get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def _lowers(folder: Path) -> bool:
    """Whether the tokenizer lowercases by itself."""
    name = "tokenizer_config.json"
    return (folder / name).is_file() and read_config(folder, {}, name).get("do_lower_case") is True


def _read_prompts(folder: Path) -> dict[str, Any]:
    if not (folder / _PROMPTS).is_file():
        return {}
    config = read_config(folder, {}, _PROMPTS)
    given = config.get("prompts")
    prompts = {str(name): str(text) for name, text in given.items()} if isinstance(given, dict) else {}
    return {"prompts": prompts, "default_prompt": prompts.get(str(config.get("default_prompt_name")), "")}
