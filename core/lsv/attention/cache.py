"""A cache in the layout that most libraries read: pages of keys and pages of values for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lsv.attention import AttentionLayer, CacheSpec, Place

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

    def of(self, layer: AttentionLayer) -> Pages:
        return self.layers[layer.group, layer.place]


def make_cache(spec: CacheSpec, device: torch.device, *, heads_first: bool = False) -> PagedCache:
    """A cache of zeros: kernels may multiply what lies behind a row's last token by 0, which NaN would survive.

    If all layers are of one size, the pages of a layer's keys are one contiguous tensor, as libraries expect. Otherwise
    a page has blocks of all layers of the group that owns it, so that groups of different layers share the pool.
    """
    assert spec.dtype.is_floating_point, "there is no room for the scales of integers"
    layers = spec.placed()
    equal = len({spec.block_bytes(layer) for layer in layers.values()}) == 1
    views = _contiguous_views(spec, device) if equal else _pooled_views(spec, device)

    def shaped(memory: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
        shape = (layer.kv_heads, spec.block_size) if heads_first else (spec.block_size, layer.kv_heads)
        return memory.view(spec.dtype).view(spec.pages, *shape, layer.head_dim)

    shapes = {place: (shaped(k, layers[place]), shaped(v, layers[place])) for place, (k, v) in views.items()}
    return PagedCache(spec.dtype, spec.block_size, shapes)


def _contiguous_views(spec: CacheSpec, device: torch.device) -> dict[Place, Pages]:
    """uint8 [pages, bytes] each; layers of different groups that have the same place share their memory."""
    half = spec.block_bytes(spec.layers[0]) // 2
    most = max(len(group.layers) for group in spec.groups)
    memory = torch.zeros(most, 2, spec.pages, half, dtype=torch.uint8, device=device)
    return {(group, place): (memory[place, 0], memory[place, 1]) for group, place in spec.placed()}


def _pooled_views(spec: CacheSpec, device: torch.device) -> dict[Place, Pages]:
    """uint8 [pages, bytes] each, from pages whose size every layer's token divides, as kernels index by tokens."""
    begins, largest = spec.offsets()
    tokens = math.lcm(*(spec.block_bytes(layer) // (2 * spec.block_size) for layer in spec.layers))
    pool = torch.zeros(spec.pages, -(-largest // tokens) * tokens, dtype=torch.uint8, device=device)
    views: dict[Place, Pages] = {}
    for place, layer in spec.placed().items():
        half, begin = spec.block_bytes(layer) // 2, begins[place]
        views[place] = (pool[:, begin : begin + half], pool[:, begin + half : begin + 2 * half])
    return views
