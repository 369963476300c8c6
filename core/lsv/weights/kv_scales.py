"""The scales a checkpoint gives for a KV cache of 8-bit floats: what K and V of a layer are divided by when written."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from lsv.attention import AttentionLayer
from lsv.errors import CheckpointError
from lsv.weights.checkpoint import CheckpointSource

NAMES = r"(?:^|\.)layers\.(\d+)\.self_attn\.(?:attn\.|[kv]_proj\.)?([kv])_scale$"
"""``self_attn.k_scale`` (compressed-tensors), ``self_attn.attn.k_scale``, ``self_attn.k_proj.k_scale`` (ModelOpt); one
number each. Read for a cache of any dtype, and used by one of 8-bit floats."""


def with_scales(layers: Sequence[AttentionLayer], source: CheckpointSource) -> list[AttentionLayer]:
    """The layers with the checkpoint's scales, 1 where it has none.

    Raises ``CheckpointError`` for a value that is not a positive finite number.
    """
    found: dict[tuple[int, str], float] = {}
    for name in source.tensors():
        match = re.search(NAMES, name)
        if match:
            found[int(match[1]), match[2]] = _read(name, source)

    def scaled(layer: AttentionLayer) -> AttentionLayer:
        key, value = (found.get((layer.index, which), 1.0) for which in "kv")
        return dataclasses.replace(layer, key_scale=key, value_scale=value)

    return [scaled(layer) for layer in layers]


def _read(name: str, source: CheckpointSource) -> float:
    info = source.tensors()[name]
    if math.prod(info.shape) != 1 or not info.dtype.is_floating_point:
        raise CheckpointError(f"{name} has shape {list(info.shape)} and dtype {info.dtype}, expected one float")
    scale = float(source.read(name, 0, 1).float())
    if not 0.0 < scale < math.inf:
        raise CheckpointError(f"{name} is {scale}, expected a scale above 0")
    return scale
