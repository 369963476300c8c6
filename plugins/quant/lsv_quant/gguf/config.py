"""A GGUF file's metadata as config.json and generation_config.json. Imports no torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from lsv.errors import CheckpointError
from lsv_quant.gguf.file import GgufFile, StoredBlocks
from lsv_quant.gguf.layout import ROPE_FACTORS, family_of, forms, has_own_head, places
from lsv_quant.gguf.types import TYPES

T = TypeVar("T", int, float, str, bool)
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Parameters that all models with this scaling share; a file has only the resulting factors."""


class Metadata:
    """The keys of a model's architecture; it knows which of them have not been read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        prefix = f"{metadata['general.architecture']}."
        self._prefix = prefix
        self._left = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of ``key``. Raises ``CheckpointError`` if it has another type, or is absent without a default."""
        value = self._left.pop(key, default)
        if type(value) is int and kind is float:
            return kind(value)
        if type(value) is not kind:
            raise CheckpointError(f"{self._prefix}{key} must be {kind.__name__}, found {value!r:.100}", param="model")
        return value

    def count(self, key: str) -> int:
        """The value of ``key``, a positive number; otherwise as ``take``."""
        value = self.take(key, int)
        if value < 1:
            raise CheckpointError(f"{self._prefix}{key} must be positive, found {value}", param="model")
        return value

    def finish(self) -> None:
        """Raise ``CheckpointError`` naming the unread keys."""
        if self._left:
            found = ", ".join(f"{self._prefix}{key} = {value!r}" for key, value in sorted(self._left.items()))
            raise CheckpointError(f"the GGUF file has keys that are not known and could change results: {found}")


def read_config(file: GgufFile) -> dict[str, Any]:
    """config.json for a file. Raises ``CheckpointError`` for a model that can't be described or run."""
    family, keys = family_of(file.metadata), Metadata(file.metadata)
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    size = keys.take("attention.key_length", int, hidden // heads)
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": _table(file).shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": keys.take("block_count", int),
        "intermediate_size": keys.take("feed_forward_length", int, 0) or hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.take("attention.head_count_kv", int, heads),
        "head_dim": size,
        "rms_norm_eps": keys.take("attention.layer_norm_rms_epsilon", float),
        "max_position_embeddings": keys.take("context_length", int),
        "rope_theta": keys.take("rope.freq_base", float, 10000.0),
        "tie_word_embeddings": not has_own_head(file),
        "attention_bias": family.model_type == "llama" and "blk.0.attn_q.bias" in file.tensors,
        **_experts(keys, family.model_type),
    }
    _refuse_sizes(keys, size)
    scaling = _rope_scaling(keys, file, size, config["rope_theta"])
    if scaling:
        config["rope_scaling"] = scaling
    keys.finish()
    return config | read_generation(file.metadata) | _types(file)


def read_generation(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The ids that begin and end texts and turns of a conversation."""
    prefix = "tokenizer.ggml."
    ends = [metadata.get(f"{prefix}{name}_token_id") for name in ("eos", "eot")]
    eos = list({end: None for end in ends if type(end) is int})
    found = {"bos_token_id": metadata.get(f"{prefix}bos_token_id"), "eos_token_id": eos or None}
    if wrong := [one for one in (*ends, found["bos_token_id"]) if one is not None and type(one) is not int]:
        raise CheckpointError(
            f"the GGUF file's special tokens must be token ids, found {wrong[0]!r:.100}", param="model"
        )
    return {key: value for key, value in found.items() if value is not None}


def _table(file: GgufFile) -> StoredBlocks:
    if "token_embd.weight" not in file.tensors:
        raise CheckpointError("the GGUF file has no token_embd.weight: it is not a whole model", param="model")
    return file.tensors["token_embd.weight"]


def _experts(keys: Metadata, model_type: str) -> dict[str, Any]:
    count, top = keys.take("expert_count", int, 0), keys.take("expert_used_count", int, 0)
    size = keys.take("expert_feed_forward_length", int, 0)
    if model_type == "mixtral":
        return {"num_local_experts": count, "num_experts_per_tok": top}
    if model_type == "qwen3_moe":
        return {
            "num_experts": count, "num_experts_per_tok": top, "moe_intermediate_size": size, "norm_topk_prob": True,
        }  # fmt: skip
    return {}


def _refuse_sizes(keys: Metadata, size: int) -> None:
    """Refuse what the format allows and models here do not support."""
    keys.take("vocab_size", int, 0)
    keys.take("rope.scaling.finetuned", bool, False)
    keys.take("tensor_data_layout", str, "")
    for key in ("attention.value_length", "rope.dimension_count"):
        found = keys.take(key, int, size)
        if found != size:
            raise CheckpointError(
                f"{key} is {found}, and heads have {size}: models here have both alike", param="model"
            )


def _rope_scaling(keys: Metadata, file: GgufFile, size: int, theta: float) -> dict[str, Any] | None:
    kind, factor = keys.take("rope.scaling.type", str, "none"), keys.take("rope.scaling.factor", float, 1.0)
    original = keys.take("rope.scaling.original_context_length", int, 0)
    if ROPE_FACTORS in file.tensors:
        return _llama3(file.tensors[ROPE_FACTORS], size, theta)
    if kind == "none" or factor == 1.0:
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"rope.scaling.type is {kind!r}; what can be computed is linear, yarn", param="model")
    return {"rope_type": kind, "factor": factor} | (
        {"original_max_position_embeddings": original} if original and kind == "yarn" else {}
    )


def _llama3(tensor: StoredBlocks, size: int, theta: float) -> dict[str, Any]:
    """The Llama 3.1 scaling that gives these frequency divisors; raises ``CheckpointError`` for any other."""
    count = size // 2
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        found = struct.unpack(f"<{count}f", file.read(4 * count)) if _is_vector(tensor, count) else ()
    scaling = {"rope_type": "llama3", "factor": float(round(max(found, default=0.0), 4)), **_LLAMA3}
    if not found or not all(
        math.isclose(a, b, rel_tol=1e-3) for a, b in zip(found, _factors(scaling, size, theta), strict=True)
    ):
        raise CheckpointError(f"{ROPE_FACTORS} is not the scaling of Llama 3.1, which alone can be read", param="model")
    return scaling


def _is_vector(tensor: StoredBlocks, count: int) -> bool:
    return tensor.shape == (count,) and tensor.type == "F32"


def _factors(scaling: Mapping[str, Any], size: int, theta: float) -> list[float]:
    """Low frequencies are divided by the factor, high ones are kept, those between are interpolated."""
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    found = []
    for number in range(size // 2):
        turns = scaling["original_max_position_embeddings"] / (2 * math.pi * theta ** (2 * number / size))
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - share) / factor + share))
    return found


def _types(file: GgufFile) -> dict[str, Any]:
    """How weights are held: as codes, or else the dtype of plain matrices."""
    layers = forms(file, places(file))
    if layers:
        return {"quantization_config": {"quant_method": "gguf", "layers": layers}}
    plain = {
        tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1 and TYPES[tensor.type].form is None
    }
    return {"dtype": _DTYPES[plain.pop()]} if len(plain) == 1 else {}
