"""How the KV cache lies in memory.

One tensor [pages, elements of a page]. A page holds a block of every layer of the group that owns it, layer by layer:
keys [kv_heads, head_dim, block], so that scores need no sums across lanes, then values [kv_heads, block, head_dim].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lsv.attention import AttentionLayer
from lsv.kv.spec import KVGroup


@dataclass(frozen=True, slots=True)
class KVCache:
    """``offsets`` says where in a page of its group a layer's block begins: by (group, place), in elements."""

    pages: torch.Tensor
    block_size: int
    offsets: Mapping[tuple[int, int], int]

    def keys(self, layer: AttentionLayer) -> torch.Tensor:
        """[pages, kv_heads, head_dim, block], a view."""
        return self._blocks(layer, 0).view(-1, layer.kv_heads, layer.head_dim, self.block_size)

    def values(self, layer: AttentionLayer) -> torch.Tensor:
        """[pages, kv_heads, block, head_dim], a view."""
        size = block_elements(layer, self.block_size) // 2
        return self._blocks(layer, size).view(-1, layer.kv_heads, self.block_size, layer.head_dim)

    def _blocks(self, layer: AttentionLayer, offset: int) -> torch.Tensor:
        start = self.offsets[layer.group, layer.place] + offset
        shape = (layer.kv_heads, layer.head_dim * self.block_size)
        return self.pages[:, start : start + shape[0] * shape[1]].unflatten(1, shape)


def block_elements(layer: AttentionLayer, block_size: int) -> int:
    return 2 * layer.kv_heads * layer.head_dim * block_size


def make_cache(
    groups: Sequence[KVGroup], layers: Sequence[AttentionLayer], pages: int, block_size: int, dtype: torch.dtype
) -> KVCache:
    """The memory is not touched: pages cost nothing before they are written."""
    offsets: dict[tuple[int, int], int] = {}
    largest = 0
    for group in groups:
        size = 0
        own = {layer.place: layer for layer in layers if layer.group == group.index}
        for place in range(len(group.layers)):
            offsets[group.index, place] = size
            size += block_elements(own[place], block_size)
        largest = max(largest, size)
    return KVCache(torch.empty(pages, largest, dtype=dtype), block_size, offsets)
