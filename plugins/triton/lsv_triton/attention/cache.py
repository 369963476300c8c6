"""The layout of the KV cache: one pool of pages; each holds a block of every layer of the group that owns it.

Pages are cut into pieces, of which each has a tensor of its own: of a layer, where all groups' layers are of one size.
A block has the keys of all KV heads, head by head [kv_heads, block, head_dim], then their values likewise, then for
int8 the scales of both [kv_heads, block]. The keys of a head are contiguous, which is what a program reads. Where
values are features of keys, there are keys alone and their scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lsv_runtime.attention import AttentionLayer, CacheSpec, Place

CODES: Mapping[torch.dtype, torch.dtype] = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.int8: torch.int8,
}
"""What 8-bit caches store, by the dtype that names them."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """Views of one layer's cache."""

    keys: torch.Tensor
    """[pages, kv_heads, block, head_dim]"""

    values: torch.Tensor
    """[pages, kv_heads, block, head_dim], or of keys the first features, where these are the values."""

    key_scales: torch.Tensor | None
    """float32 [pages, kv_heads, block] for integers."""

    value_scales: torch.Tensor | None
    """float32 [pages, kv_heads, block] for integers."""


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """The pages of all groups, and views of the layers in them."""

    pieces: Sequence[torch.Tensor]
    """uint8 [pages, bytes] each"""

    dtype: torch.dtype
    block_size: int
    layers: Mapping[Place, LayerCache]
    states: Mapping[Place, torch.Tensor]
    """Those of recurrent layers, uint8 [pages, bytes] each."""

    @property
    def memory(self) -> Sequence[torch.Tensor]:
        """All of it, uint8 [pages, bytes] each."""
        return self.pieces

    def of(self, layer: AttentionLayer) -> LayerCache:
        return self.layers[layer.group, layer.place]


def make_cache(spec: CacheSpec, device: torch.device) -> KVCache:
    """A cache whose pages are as large as the largest group needs. Their contents are undefined."""
    begins, sizes = spec.pieces()
    pieces = [torch.empty(spec.pages, size, dtype=torch.uint8, device=device) for size in sizes]
    views: dict[Place, LayerCache] = {}
    for place, layer in spec.placed().items():
        number, begin = begins[place]
        views[place] = _views(pieces[number][:, begin : begin + spec.block_bytes(layer)], layer, spec)
    return KVCache(pieces, spec.dtype, spec.block_size, views, spec.state_pages(pieces))


def _views(memory: torch.Tensor, layer: AttentionLayer, spec: CacheSpec) -> LayerCache:
    """The parts of ``memory`` uint8 [pages, bytes of the layer's block]."""
    block_size, dtype = spec.block_size, spec.dtype
    count = 2 if layer.value_dim is None else 1
    size = layer.kv_heads * block_size * layer.head_dim * dtype.itemsize
    heads, rest = memory.tensor_split((count * size,), dim=1)
    stored = heads.view(CODES.get(dtype, dtype)).unflatten(1, (count, layer.kv_heads, block_size, layer.head_dim))
    keys, values = stored[:, 0], stored[:, -1, ..., : layer.value_dim]
    if dtype != torch.int8:
        return LayerCache(keys, values, None, None)
    scales = rest.view(torch.float32).unflatten(1, (count, layer.kv_heads, block_size))
    return LayerCache(keys, values, scales[:, 0], scales[:, -1])
