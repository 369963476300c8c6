"""How the KV cache lies in memory: see native/attention_pages.h.

One tensor [pages, elements of a page]. A page holds a block of every layer of the group that owns it, layer by layer:
the keys of all KV heads, then their values. A pair, of features in keys and of tokens in values, fills 4 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lsv.attention import AttentionLayer
from lsv.kv.spec import KVGroup
from lsv_cpu.arena import Arena

_SLACK = 64  # bytes that may be read behind a line of values


@dataclass(frozen=True, slots=True)
class KVCache:
    """``offsets`` says where in a page of its group a layer's block begins: by (group, place), in elements."""

    pages: torch.Tensor
    block_size: int
    offsets: Mapping[tuple[int, int], int]

    @property
    def pair(self) -> int:
        return 4 // self.pages.itemsize

    def keys(self, layer: AttentionLayer) -> torch.Tensor:
        """[pages, kv_heads, head_dim * block], a view; ``key_order`` says what is where."""
        return self._blocks(layer, 0)

    def values(self, layer: AttentionLayer) -> torch.Tensor:
        """[pages, kv_heads, block / pair, head_dim, pair], a view."""
        blocks = self._blocks(layer, block_elements(layer, self.block_size) // 2)
        return blocks.unflatten(2, (self.block_size // self.pair, layer.head_dim, self.pair))

    def key_order(self, head_dim: int) -> torch.Tensor:
        """Where a block of keys has each feature of each token: int64 [block, head_dim]."""
        feature, token = torch.arange(head_dim), torch.arange(self.block_size)[:, None]
        paired = (feature // self.pair * self.block_size + token) * self.pair + feature % self.pair
        whole = head_dim // self.pair * self.pair
        return torch.where(feature < whole, paired, feature * self.block_size + token)

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
    memory = Arena().take(pages * largest * dtype.itemsize + _SLACK)[:-_SLACK].view(dtype)
    return KVCache(memory.view(pages, largest), block_size, offsets)
