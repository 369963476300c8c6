"""The reference attention backend: plain torch, row by row, in float32. Tests of models run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, Int32s, Place, values_of
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.plan import row_starts

if TYPE_CHECKING:
    from lsv_runtime.devices.device import Device


@dataclass(frozen=True, slots=True)
class DenseCache:
    """The pages of every layer."""

    k: dict[int, torch.Tensor]
    """By layer index: [pages, block_size, kv_heads, head_dim]."""

    v: dict[int, torch.Tensor]
    """As ``k``."""

    block_size: int

    states: Mapping[Place, torch.Tensor]
    """Those of recurrent layers, uint8 [pages, bytes] each."""

    @property
    def memory(self) -> list[torch.Tensor]:
        """All of it, uint8 [pages, bytes] each."""
        pages = (*self.k.values(), *self.v.values())
        return [part.view(len(part), -1).view(torch.uint8) for part in pages] + list(self.states.values())


@dataclass(frozen=True, slots=True)
class DensePlan:
    """What is to be known of each row."""

    starts: tuple[int, ...]
    """Where the tokens of each begin in the token dimension."""

    query: tuple[int, ...]
    """New tokens of each."""

    context: tuple[int, ...]
    """All tokens of each."""

    tables: tuple[torch.Tensor, ...]
    """int64 [blocks]: the block table of each."""


class DenseAttention(PagedBackend):
    """Every layer has pages of its own, so groups can't disturb each other. Without a device they are on the host."""

    cuts_rows = gathers = mutual = True
    biased = shares_values = sparse = True

    def make_cache(self, spec: CacheSpec, device: Device | None) -> DenseCache:
        where = "cpu" if device is None else device.torch_device

        def make(layer: AttentionLayer) -> torch.Tensor:
            # NaN where nothing was written, so that a read past the context shows
            shape = (spec.pages, spec.block_size, layer.kv_heads, layer.head_dim)
            return torch.full(shape, torch.nan, dtype=spec.dtype, device=where)

        kept = [layer for layer in spec.layers if layer.reads is None]
        keys = {layer.index: make(layer) for layer in kept}
        values = {
            layer.index: make(layer) if layer.value_dim is None else keys[layer.index][..., : layer.value_dim]
            for layer in kept
        }
        states = {
            (layer.group, layer.place): torch.full(
                (spec.pages, layer.state_bytes),
                255,
                dtype=torch.uint8,
                device=where,  # NaN as any floating point
            )
            for layer in spec.states
        }
        return DenseCache(keys, values, spec.block_size, states)

    def plan(self, batch: BatchLayout, group: KVGroup, into: DensePlan | None = None) -> DensePlan:
        tables = tuple(torch.from_numpy(row.astype("int64")) for row in self.table_of(batch, group))
        starts = row_starts(batch)[:-1]
        return DensePlan(tuple(starts.tolist()), tuple(batch.query.tolist()), tuple(batch.context.tolist()), tables)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: DenseCache | None,
        plan: DensePlan,
    ) -> torch.Tensor:
        if cache is not None and k is not None:
            self.write(k, v, layer, cache, plan)
        out = q.new_zeros(*q.shape[:2], layer.value_dim or layer.head_dim)  # zeros for padding
        for first, query, context, table in zip(plan.starts, plan.query, plan.context, plan.tables, strict=True):
            rows = slice(first, first + query)
            if cache is None:
                assert k is not None, "without a cache there must be keys"
                keys, values = k[rows], values_of(k, v, layer)[rows]
            else:
                places = _places(table.to(q.device), context, cache.block_size)
                keys, values = _read(cache.k[layer.keeper], places), _read(cache.v[layer.keeper], places)
            out[rows] = attend_dense(q[rows], keys, values, layer)
        return out

    def write(
        self, k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: DenseCache, plan: DensePlan
    ) -> None:
        for first, query, context, table in zip(plan.starts, plan.query, plan.context, plan.tables, strict=True):
            places = _places(table.to(k.device), context, cache.block_size)[context - query :]
            _write(cache.k[layer.keeper], places, k[first : first + query])
            if v is not None:
                _write(cache.v[layer.keeper], places, v[first : first + query])

    def lengths(self, plan: DensePlan) -> tuple[Int32s, Int32s]:
        starts = np.array([*plan.starts, plan.starts[-1] + plan.query[-1]], np.int32)
        return starts, np.array(plan.context, np.int32)

    def read_cached(
        self, layer: AttentionLayer, cache: DenseCache, plan: DensePlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pages = cache.k[layer.keeper], cache.v[layer.keeper]
        rows = zip(plan.context, plan.tables, strict=True)
        places = torch.cat([_places(table.to(pages[0].device), context, cache.block_size) for context, table in rows])
        keys, values = (_read(one, places) for one in pages)
        return keys, values


def _places(table: torch.Tensor, context: int, block_size: int) -> torch.Tensor:
    """Slots of the positions 0 … context-1: page times block size plus place in the page."""
    positions = torch.arange(context, device=table.device)
    return table[positions // block_size] * block_size + positions % block_size


def _write(pages: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    pages.flatten(0, 1)[places] = tokens.to(pages.dtype)


def _read(pages: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return pages.flatten(0, 1)[places]


def attend_dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """One row: q [Q, heads, dim] are the last Q of the C positions of k and v [C, kv_heads, dim] -> [Q, heads, dim].

    Positions that no query sees may hold anything, NaN included.
    """
    shared = layer.heads // layer.kv_heads
    visible = _visible(len(q), len(k), layer, q.device)
    unseen = ~visible.any(dim=0)
    k = k.float().masked_fill(unseen[:, None, None], 0.0).repeat_interleave(shared, dim=1)
    v = v.float().masked_fill(unseen[:, None, None], 0.0).repeat_interleave(shared, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    if layer.alibi is not None:
        scores = scores - layer.alibi.float()[:, None, None] * _distance(len(q), len(k), q.device).abs()
    if layer.biases is not None:
        before = -_distance(len(q), len(k), q.device)
        scores = scores + layer.biases.float()[:, before.clamp(0, layer.biases.shape[1] - 1)]
    scores = scores.masked_fill(~visible, -torch.inf)
    if layer.pattern is not None:
        positions = torch.arange(len(k) - len(q), len(k), device=q.device)
        scores = scores.masked_fill(~layer.pattern.see(positions, len(k), layer.heads), -torch.inf)
    if layer.sinks is not None:
        sinks = layer.sinks.float()[:, None, None].expand(-1, len(q), 1)
        weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)


def _distance(query: int, context: int, device: torch.device) -> torch.Tensor:
    """[Q, C]: key position - query position."""
    queries = torch.arange(context - query, context, device=device)
    return torch.arange(context, device=device)[None, :] - queries[:, None]


def _visible(query: int, context: int, layer: AttentionLayer, device: torch.device) -> torch.Tensor:
    distance = _distance(query, context, device)
    visible = torch.ones_like(distance, dtype=torch.bool)
    if layer.causal:
        visible &= distance <= 0
    if layer.window is not None:
        visible &= distance.abs() < layer.window
    return visible
