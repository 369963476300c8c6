"""How the KV cache of vendors' attention ops lies in memory: for each layer pages of keys, and pages of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lsv.attention import AttentionLayer
from lsv.kv.spec import KVGroup

Place = tuple[int, int]
"""A layer's group, and its place there."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedCache:
    """K and V of each layer, views of its dtype: [pages, block, kv_heads, dim], or [pages, kv_heads, block, dim]."""

    dtype: torch.dtype
    block_size: int
    layers: Mapping[Place, tuple[torch.Tensor, torch.Tensor]]

    def of(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers[layer.group, layer.place]


def make_cache(
    groups: Sequence[KVGroup],
    layers: Sequence[AttentionLayer],
    pages: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    heads_first: bool,
) -> PagedCache:
    """A cache of zeros: ops may multiply what is behind a row's last token by 0, which NaN would survive.

    Where all layers are of one size, the pages of a layer's keys lie in one piece, as vendors expect them; else a page
    has all layers of the group that owns it, so that groups of different layers can share the pool.
    """
    own = {(layer.group, layer.place): layer for layer in layers}
    held = {group.index: [(group.index, place) for place in range(len(group.layers))] for group in groups}
    halves = {at: _token_bytes(own[at], dtype) * block_size for places in held.values() for at in places}
    views: dict[Place, tuple[torch.Tensor, torch.Tensor]] = {}
    if len(set(halves.values())) == 1:
        most, half = max(len(places) for places in held.values()), next(iter(halves.values()))
        memory = torch.zeros(most, 2, pages, half, dtype=torch.uint8, device=device)
        views = {at: (memory[at[1], 0], memory[at[1], 1]) for at in halves}
    else:
        largest = max((sum(2 * halves[at] for at in places) for places in held.values()), default=0)
        tokens = math.lcm(*(_token_bytes(own[at], dtype) for at in halves))
        pool = torch.zeros(pages, -(-largest // tokens) * tokens, dtype=torch.uint8, device=device)
        for places in held.values():
            start = 0
            for at in places:
                views[at] = (pool[:, start : start + halves[at]], pool[:, start + halves[at] : start + 2 * halves[at]])
                start += 2 * halves[at]

    def shaped(memory: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
        shape = (layer.kv_heads, block_size) if heads_first else (block_size, layer.kv_heads)
        return memory.view(dtype).unflatten(1, (*shape, layer.head_dim))

    return PagedCache(dtype, block_size, {at: (shaped(k, own[at]), shaped(v, own[at])) for at, (k, v) in views.items()})


def _token_bytes(layer: AttentionLayer, dtype: torch.dtype) -> int:
    """Of one token's keys, or of its values."""
    return layer.kv_heads * layer.head_dim * dtype.itemsize
