"""A cache in the layout that most libraries read: pages of keys and pages of values for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lsv_runtime.attention import AttentionLayer, CacheSpec, Place

_STATE_ALIGNMENT = 64
"""Bytes: states have parts of other dtypes than the cache."""

Pages = tuple[torch.Tensor, torch.Tensor]
"""K and V of one layer, views of the cache's dtype: [pages, block, kv_heads, head_dim] each, or with heads first
[pages, kv_heads, block, head_dim].
"""


@dataclass(frozen=True, slots=True, eq=False)
class PagedCache:
    """The pages of all layers. It has no room for scales, so none for integers either."""

    dtype: torch.dtype
    block_size: int
    layers: Mapping[Place, Pages]
    states: Mapping[Place, torch.Tensor]
    """Those of recurrent layers, uint8 [pages, bytes] each."""
    memory: Sequence[torch.Tensor]
    """What all of these are views of, uint8 [pages, bytes] each."""

    def of(self, layer: AttentionLayer) -> Pages:
        return self.layers[layer.group, layer.place]


def make_cache(spec: CacheSpec, device: torch.device, *, heads_first: bool = False) -> PagedCache:
    """A cache of zeros: kernels may multiply what lies behind a row's last token by 0, which NaN would survive.

    A page has blocks of all layers of the group that owns it, and is cut into pieces (``CacheSpec.pieces``). Where all
    blocks of a piece are of one size, the pages of a layer's keys are one contiguous tensor, as libraries expect, and
    those of its values another; otherwise the piece is a pool of pages.
    """
    assert spec.dtype.is_floating_point, "there is no room for the scales of integers"
    begins, sizes = spec.pieces()
    layers = spec.placed()

    def shaped(memory: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
        shape = (layer.kv_heads, spec.block_size) if heads_first else (spec.block_size, layer.kv_heads)
        return memory.view(spec.dtype).view(spec.pages, *shape, layer.head_dim)

    found: dict[Place, Pages] = {}
    states: dict[Place, torch.Tensor] = {}
    memory: list[torch.Tensor] = []
    kept = {(layer.group, layer.place): layer.state_bytes for layer in spec.states}
    for number, size in enumerate(sizes):
        inside = {place: begin for place, (piece, begin) in begins.items() if piece == number}
        sharing = {place: begin for place, begin in inside.items() if place in layers}
        equal = len(sharing) == len(inside) and all(spec.block_bytes(layers[place]) == size for place in sharing)
        if equal:
            keys, values = (torch.zeros(spec.pages, size // 2, dtype=torch.uint8, device=device) for _ in range(2))
            views = dict.fromkeys(sharing, (keys, values))  # layers of different groups share their memory
            memory += (keys, values)
        else:
            pool = _make_pool(spec, sharing, size, device)
            memory.append(pool)
            views = _pooled_views(spec, sharing, pool)
            states |= {place: pool[:, begin : begin + kept[place]] for place, begin in inside.items() if place in kept}
        for place, (k, v) in views.items():
            found[place] = (shaped(k, layers[place]), shaped(v, layers[place]))
    return PagedCache(spec.dtype, spec.block_size, found, states, memory)


def _make_pool(spec: CacheSpec, sharing: Mapping[Place, int], size: int, device: torch.device) -> torch.Tensor:
    """uint8 [pages, bytes], pages whose size every layer's token divides, as kernels index by tokens."""
    layers = spec.placed()
    tokens = (spec.block_bytes(layers[place]) // 2 // spec.block_size for place in sharing)
    step = math.lcm(_STATE_ALIGNMENT if spec.states else 1, *tokens)
    return torch.zeros(spec.pages, -(-size // step) * step, dtype=torch.uint8, device=device)


def _pooled_views(spec: CacheSpec, sharing: Mapping[Place, int], pool: torch.Tensor) -> dict[Place, Pages]:
    """uint8 [pages, bytes] each, parts of the pool's pages."""
    layers = spec.placed()
    halves = {place: spec.block_bytes(layers[place]) // 2 for place in sharing}
    return {
        place: (pool[:, begin : begin + halves[place]], pool[:, begin + halves[place] : begin + 2 * halves[place]])
        for place, begin in sharing.items()
    }
