"""The rope of a GGUF file: its keys, and the tensors with factors. Imports no torch."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import WEIGHTS, open_regular
from lsv_quant.gguf.architecture import Architecture, Config
from lsv_quant.gguf.file import GgufFile, StoredBlocks
from lsv_quant.gguf.layout import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from lsv_quant.gguf.metadata import Metadata

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Parameters that all models with this scaling share; a file has only the resulting factors."""
_YARN = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}
_OF_PARTS = "rope_scaling."


def read_rope(keys: Metadata, architecture: Architecture, file: GgufFile, size: int) -> Config:
    """The keys of config.json about positions, for heads of ``size``; 0 for latent attention."""
    theta = keys.take("rope.freq_base", float, 10000.0)
    rotated = keys.take("rope.dimension_count", int, size)
    config: Config = {"rope_theta": theta}
    if size and rotated != size:
        if not architecture.partial or rotated < 1:
            raise CheckpointError(
                f"rope.dimension_count is {rotated}, and heads have {size}: this architecture rotates all of a head",
                param="model",
            )
        config["partial_rotary_factor"] = rotated / size
    scaling = _read_scaling(keys, file, rotated, theta)
    if scaling:
        more = {
            name.removeprefix(_OF_PARTS): value
            for name, value in architecture.fixed.items()
            if name.startswith(_OF_PARTS)
        }
        config["rope_scaling"] = scaling | more
        original = scaling.get("original_max_position_embeddings")
        if scaling["rope_type"] == "longrope" and original:
            config["original_max_position_embeddings"] = original
    return config


def _read_scaling(keys: Metadata, file: GgufFile, rotated: int, theta: float) -> Config | None:
    kind, factor = keys.take("rope.scaling.type", str, "none"), keys.take("rope.scaling.factor", float, 1.0)
    original = keys.take("rope.scaling.original_context_length", int, 0)
    magnitude = keys.take("rope.scaling.attn_factor", float, 0.0)
    borders = {name: keys.take(key, float) for name, key in _YARN.items() if keys.has(key)}
    if LONG_FACTORS in file.tensors or SHORT_FACTORS in file.tensors:
        found = {
            "rope_type": "longrope", "original_max_position_embeddings": original,
            "long_factor": _factors_of(file, LONG_FACTORS, rotated // 2),
            "short_factor": _factors_of(file, SHORT_FACTORS, rotated // 2),
        }  # fmt: skip
        return found | ({"attention_factor": magnitude} if magnitude else {})
    plain = ROPE_FACTORS in file.tensors or kind in ("none", "linear") or factor == 1.0
    if plain and magnitude not in (0.0, 1.0):
        raise CheckpointError(
            f"rope.scaling.attn_factor is {magnitude}, which can be computed of yarn and long factors alone",
            param="model",
        )
    if ROPE_FACTORS in file.tensors:
        return _llama3(file.tensors[ROPE_FACTORS], rotated, theta)
    if kind == "none" or factor == 1.0:
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"rope.scaling.type is {kind!r}; what can be computed is linear, yarn", param="model")
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    return {
        "rope_type": kind, "factor": factor, **borders,
        **({"original_max_position_embeddings": original} if original else {}),
        **({"attn_factor": magnitude} if magnitude else {}),
    }  # fmt: skip


def _factors_of(file: GgufFile, name: str, count: int) -> list[float]:
    tensor = file.tensors.get(name)
    if tensor is None or not _is_vector(tensor, count):
        raise CheckpointError(f"the GGUF file must have {name} with {count} numbers of type F32", param="model")
    return list(_numbers(tensor, count))


def _numbers(tensor: StoredBlocks, count: int) -> tuple[float, ...]:
    with os.fdopen(open_regular(tensor.file, WEIGHTS), "rb") as file:
        file.seek(tensor.offset)
        return struct.unpack(f"<{count}f", file.read(4 * count))


def _llama3(tensor: StoredBlocks, size: int, theta: float) -> dict[str, Any]:
    """The Llama 3.1 scaling that gives these frequency divisors; raises ``CheckpointError`` for any other."""
    count = size // 2
    found = _numbers(tensor, count) if _is_vector(tensor, count) else ()
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
