"""How the KV cache lies in memory: one pool of pages, in each a block of every layer of the group that owns it.

A block has the keys of all KV heads, head by head [kv_heads, block, head_dim], then their values likewise, then for
int8 the scales of both [kv_heads, block]. A head's keys lie in one piece, which is what a program reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lsv.attention import AttentionLayer, token_bytes
from lsv.kv.spec import KVGroup

CODES: Mapping[torch.dtype, torch.dtype] = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.int8: torch.int8,
}
"""What caches of 8 bits are made of, by the dtype that names them."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """Views of one layer's cache: K and V [pages, kv_heads, block, head_dim]; scales float32 [pages, kv_heads, block]
    where it is of integers.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None
    value_scales: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """``pages`` uint8 [pages, bytes]; ``layers`` by (group, place)."""

    pages: torch.Tensor
    dtype: torch.dtype
    block_size: int
    layers: Mapping[tuple[int, int], LayerCache]

    def of(self, layer: AttentionLayer) -> LayerCache:
        return self.layers[layer.group, layer.place]


def make_cache(
    groups: Sequence[KVGroup],
    layers: Sequence[AttentionLayer],
    pages: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """A cache whose pages are as large as those of the largest group. What is in them is not defined."""
    own = {(layer.group, layer.place): layer for layer in layers}
    places = [[(group.index, place) for place in range(len(group.layers))] for group in groups]
    sizes = {at: token_bytes(own[at], dtype) * block_size for group in places for at in group}
    memory = torch.empty(
        pages, max(sum(sizes[at] for at in group) for group in places), dtype=torch.uint8, device=device
    )
    views: dict[tuple[int, int], LayerCache] = {}
    for group in places:
        start = 0
        for at in group:
            views[at] = _views(memory[:, start : start + sizes[at]], own[at], block_size, dtype)
            start += sizes[at]
    return KVCache(memory, dtype, block_size, views)


def _views(memory: torch.Tensor, layer: AttentionLayer, block_size: int, dtype: torch.dtype) -> LayerCache:
    """The parts of ``memory`` uint8 [pages, bytes of the layer's block]."""
    half = layer.kv_heads * block_size * layer.head_dim * dtype.itemsize
    keys, values, rest = memory.tensor_split((half, 2 * half), dim=1)
    shape = (layer.kv_heads, block_size, layer.head_dim)
    keys, values = (part.view(CODES.get(dtype, dtype)).unflatten(1, shape) for part in (keys, values))
    if dtype != torch.int8:
        return LayerCache(keys, values, None, None)
    key_scales, value_scales = rest.view(torch.float32).unflatten(1, (2, layer.kv_heads, block_size)).unbind(1)
    return LayerCache(keys, values, key_scales, value_scales)
