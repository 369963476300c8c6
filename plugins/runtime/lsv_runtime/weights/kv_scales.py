"""The scales of a KV cache of 8-bit floats: what K and V of a layer are divided by when written.

A checkpoint has them as tensors, or a file beside it, which vLLM calls ``kv_cache_scales.json``
(``model_executor/layers/quantization/schema.py``): one number for K and V alike, by rank and layer.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.weights.checkpoint import CheckpointSource, TensorInfo, read_region
from lsv_runtime.weights.regions import Region

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
        key, value = (found.get((layer.keeper, which), 1.0) for which in "kv")
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


class _Cache(msgspec.Struct):
    dtype: str
    scaling_factor: dict[int, dict[int, float]]


class _File(msgspec.Struct):
    kv_cache: _Cache


def read_file(path: str, rank: int, ranks: int, layers: Sequence[AttentionLayer]) -> dict[int, float]:
    """A rank's scales by the index of their layer.

    Raises ``ConfigError`` for a file that is none, or is for another cache, number of ranks or of layers.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=_File).kv_cache
    except (OSError, msgspec.DecodeError) as cause:
        raise _refusal(path, f"can't be read: {cause}") from cause
    if found.dtype != "float8_e4m3fn":
        raise _refusal(path, f"is for a cache of {found.dtype}, not of float8_e4m3fn")
    if sorted(found.scaling_factor) != list(range(ranks)):
        raise _refusal(path, f"is for {len(found.scaling_factor)} ranks, not for {ranks}")
    scales = found.scaling_factor[rank]
    for layer in layers:
        if not 0.0 < scales.get(layer.keeper, 0.0) < math.inf:
            raise _refusal(path, f"has no scale above 0 for layer {layer.keeper} of rank {rank}")
    return scales


def _refusal(path: str, what: str) -> ConfigError:
    return ConfigError(f"quantization_param_path: {path} {what}", param="quantization_param_path")


class WithFile:
    """Another source, with the scales of a file in the place of its own."""

    def __init__(self, source: CheckpointSource, scales: Mapping[int, float]) -> None:
        self._source = source
        self._scales = {
            f"layers.{layer}.self_attn.{which}_scale": scale for layer, scale in scales.items() for which in "kv"
        }
        own = {name: info for name, info in source.tensors().items() if not re.search(NAMES, name)}
        self._infos = own | dict.fromkeys(self._scales, TensorInfo((), torch.float32))

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        scale = self._scales.get(name)
        return self._source.read(name, first, last) if scale is None else torch.tensor(scale)

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        return read_region(self._source, name, region)  # scales have no axes

    def close(self) -> None:
        self._source.close()
