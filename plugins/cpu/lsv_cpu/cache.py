"""The layout of the KV cache: see native/attention/pages.h.

One tensor [pages, elements of a page]. A page holds a block of every layer of the group that owns it, layer by layer:
the keys of all KV heads, then their values. A pair, of features in keys and of tokens in values, fills 4 bytes, or is
two codes. After them int8 has the scales of all keys, then of all values. Where values are features of keys there are
keys alone, and their scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lsv_cpu.arena import Arena
from lsv_cpu.codes import FORMS
from lsv_runtime.attention import AttentionLayer, CacheSpec, Place

_SLACK = 64  # bytes that may be read past a line of values


@dataclass(frozen=True, slots=True)
class KVCache:
    """The pages of all groups, and where in them the layers are."""

    pages: torch.Tensor
    """Of ``dtype`` or, if that has 8 bits, of the codes (uint8): [pages, elements]."""

    dtype: torch.dtype
    block_size: int

    offsets: Mapping[Place, int]
    """Where a layer's block begins in a page of its group, in elements."""

    states: Mapping[Place, torch.Tensor]
    """Those of recurrent layers, uint8 [pages, bytes] each."""

    @property
    def memory(self) -> tuple[torch.Tensor]:
        """All of it, uint8 [pages, bytes]."""
        return (self.pages.view(torch.uint8),)

    @property
    def pair(self) -> int:
        return 2 if self.dtype in FORMS else 4 // self.dtype.itemsize

    def start(self, layer: AttentionLayer) -> int:
        """Where the keys of a layer begin in a page, in elements."""
        return self.offsets[layer.group, layer.place]

    def half(self, layer: AttentionLayer) -> int:
        """Elements of the keys of a block, or of its values."""
        return layer.kv_heads * layer.head_dim * self.block_size

    def keys(self, layer: AttentionLayer) -> torch.Tensor:
        """[pages, kv_heads, head_dim * block], a view in the order of ``key_order``."""
        return self._heads(layer, self.start(layer), self.half(layer))

    def values(self, layer: AttentionLayer) -> torch.Tensor:
        """[pages, kv_heads, block / pair, head_dim, pair], a view."""
        values = self._heads(layer, self.start(layer) + self.half(layer), self.half(layer))
        return values.unflatten(2, (self.block_size // self.pair, layer.head_dim, self.pair))

    def scales(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """For int8 those of keys and of values, float32 [pages, kv_heads, block] each, views; the same ones of a layer
        whose values are features of keys.
        """
        if self.dtype != torch.int8:
            return None, None
        shared, size = layer.value_dim is not None, layer.kv_heads * self.block_size * 4
        first = self.start(layer) + (1 if shared else 2) * self.half(layer)
        places = (first, first if shared else first + size)
        keys, values = (self._heads(layer, at, size).view(torch.float32) for at in places)
        return keys, values

    def key_order(self, head_dim: int) -> torch.Tensor:
        """Where in a block of keys each feature of each token is: int64 [block, head_dim]."""
        feature, token = torch.arange(head_dim), torch.arange(self.block_size)[:, None]
        paired = (feature // self.pair * self.block_size + token) * self.pair + feature % self.pair
        whole = head_dim // self.pair * self.pair
        return torch.where(feature < whole, paired, feature * self.block_size + token)

    def _heads(self, layer: AttentionLayer, start: int, size: int) -> torch.Tensor:
        return self.pages[:, start : start + size].unflatten(1, (layer.kv_heads, -1))


def make_cache(spec: CacheSpec) -> KVCache:
    """The memory is not touched: pages take none before they are written."""
    begins, largest = spec.offsets()
    memory = Arena().take(spec.pages * largest + _SLACK)[:-_SLACK]
    stored = torch.uint8 if spec.dtype in FORMS else spec.dtype
    offsets = {place: begin // spec.dtype.itemsize for place, begin in begins.items()}
    sizes = {(layer.group, layer.place): layer.state_bytes for layer in spec.states}
    pages = memory.view(spec.pages, -1)
    states = {place: pages[:, begins[place] : begins[place] + size] for place, size in sizes.items()}
    return KVCache(memory.view(stored).view(spec.pages, -1), spec.dtype, spec.block_size, offsets, states)
