"""Paged attention in plain torch, many rows at a time: for any device, and the reference of the Triton kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from lsv_runtime.attention import AttentionLayer, CacheSpec, values_of
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.plan import PagedPlan
from lsv_runtime.devices.device import Device
from lsv_triton.attention.cache import CODES, KVCache, make_cache
from lsv_triton.attention.codes import decode, encode

_QUERIES = 64  # tokens of a tile
_FLOATS = 1 << 24  # most scores, or keys, in memory at a time

Int64s = npt.NDArray[np.int64]


class TorchAttention(PagedBackend):
    """All arithmetic is float32. Steps in which every row has one token can be captured and replayed."""

    biased = shares_values = mutual = sparse = True

    def make_cache(self, spec: CacheSpec, device: Device) -> KVCache:
        return make_cache(spec, device.torch_device)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: KVCache | None,
        plan: PagedPlan,
    ) -> torch.Tensor:
        if cache is None:
            assert k is not None, "without a cache there must be keys"
            return _attend_unevenly(q, layer, plan, _Tokens(k, values_of(k, v, layer)))
        if k is not None:
            write(k, v, layer, cache, plan)
        if not plan.decoding:
            return _attend_unevenly(q, layer, plan, _Pages(layer, cache))
        tiles = _Tiles(q[:, None], plan.context[:, None] - 1, plan.context, plan.tables)
        return _attend(tiles, layer, _Pages(layer, cache)).squeeze(1)

    def write(
        self, k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: KVCache, plan: PagedPlan
    ) -> None:
        write(k, v, layer, cache, plan)


def write(k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: KVCache, plan: PagedPlan) -> None:
    """Put K and V [tokens, kv_heads, head_dim] into the slots of the plan."""
    part = cache.of(layer)
    pages, places = (plan.slots // cache.block_size)[:, None], (plan.slots % cache.block_size)[:, None]
    heads = torch.arange(layer.kv_heads, device=k.device)
    for x, into, into_scales, scale in (
        (k, part.keys, part.key_scales, layer.key_scale),
        (v, part.values, part.value_scales, layer.value_scale),
    ):
        if x is None:
            continue
        if cache.dtype in CODES:
            x, scales = encode(x, cache.dtype, scale)
            if into_scales is not None and scales is not None:
                into_scales[pages, heads, places] = scales
        into[pages, heads, places] = x


class _Source(Protocol):
    """Where keys and values are read from. A place holds those of ``unit`` tokens."""

    unit: int

    def places(self, rows: Int64s, plan: PagedPlan) -> torch.Tensor:
        """Where the rows' keys are, [rows, places]; places after the last key of a row may be anything."""
        ...

    def read(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V float32 [rows, kv_heads, keys, dim] at the places [rows, places]."""
        ...


class _Pages:
    """Keys and values of a cache."""

    def __init__(self, layer: AttentionLayer, cache: KVCache) -> None:
        self.unit = cache.block_size
        self._layer, self._dtype, self._part = layer, cache.dtype, cache.of(layer)

    def places(self, rows: Int64s, plan: PagedPlan) -> torch.Tensor:
        return plan.tables[torch.from_numpy(rows).to(plan.tables.device)]

    def read(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part, layer = self._part, self._layer
        keys = self._real(part.keys, part.key_scales, layer.key_scale, places)
        if layer.value_dim is not None:
            return keys, keys[..., : layer.value_dim]
        return keys, self._real(part.values, part.value_scales, layer.value_scale, places)

    def _real(
        self, stored: torch.Tensor, scales: torch.Tensor | None, scale: float, places: torch.Tensor
    ) -> torch.Tensor:
        found = self._gather(stored, places)
        if self._dtype not in CODES:
            return found.float()
        return decode(found, self._dtype, scale, None if scales is None else self._gather(scales, places))

    @staticmethod
    def _gather(stored: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return stored[places].transpose(1, 2).flatten(2, 3)


class _Tokens:
    """Keys and values of the step itself."""

    unit = 1

    def __init__(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self._k, self._v = k, v

    def places(self, rows: Int64s, plan: PagedPlan) -> torch.Tensor:
        first, behind = plan.host_starts[rows, None], plan.host_starts[rows + 1, None]
        tokens = np.minimum(first + np.arange(int((behind - first).max())), behind - 1)
        return torch.from_numpy(tokens).to(self._k.device)

    def read(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._k[places].transpose(1, 2).float(), self._v[places].transpose(1, 2).float()


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """Groups of queries; those of a tile belong to one row."""

    q: torch.Tensor
    """[tiles, queries, heads, dim]"""

    positions: torch.Tensor
    """[tiles, queries]"""

    length: torch.Tensor
    """[tiles]: how many keys a tile reads."""

    places: torch.Tensor
    """[tiles, places]: where in a source they are."""

    def split(self, count: int) -> Iterator[_Tiles]:
        """The same tiles, ``count`` at a time."""
        pieces = (part.split(count) for part in (self.q, self.positions, self.length, self.places))
        return (_Tiles(*piece) for piece in zip(*pieces, strict=True))


def _attend_unevenly(q: torch.Tensor, layer: AttentionLayer, plan: PagedPlan, source: _Source) -> torch.Tensor:
    """Rows of any lengths: those of one token apart from the others, which are cut into tiles of equal size."""
    out = torch.empty(*q.shape[:2], layer.value_dim or layer.head_dim, dtype=q.dtype, device=q.device)
    starts = plan.host_starts.astype(np.int64)
    query = np.diff(starts)
    length = query if isinstance(source, _Tokens) else plan.host_context.astype(np.int64)
    for rows in (np.flatnonzero(query == 1), np.flatnonzero(query > 1)):
        if not len(rows):
            continue
        row, tokens = _cut(rows, starts)
        found = tokens < starts[row + 1, None]
        positions = tokens + (length[row] - starts[row + 1])[:, None]
        at, places = np.minimum(tokens, len(q) - 1), source.places(row, plan)
        numbers = (torch.from_numpy(part).to(q.device) for part in (at, positions, length[row], tokens[found], found))
        at_, positions_, length_, tokens_, found_ = numbers
        out[tokens_] = _attend(_Tiles(q[at_], positions_, length_, places), layer, source)[found_]
    return out


def _cut(rows: Int64s, starts: Int64s) -> tuple[Int64s, Int64s]:
    """Tiles of the rows' tokens: the row of each [tiles] and its tokens [tiles, queries], the last past the row."""
    query = starts[rows + 1] - starts[rows]
    size = min(_QUERIES, int(query.max()))
    counts = -(-query // size)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    row = np.repeat(rows, counts)
    return row, (starts[row] + number * size)[:, None] + np.arange(size)


def _attend(tiles: _Tiles, layer: AttentionLayer, source: _Source) -> torch.Tensor:
    """[tiles, queries, heads, dim of values]"""
    queries, keys = tiles.q.shape[1], tiles.places.shape[1] * source.unit
    floats = keys * max(layer.heads * queries, layer.kv_heads * layer.head_dim)
    pieces = tiles.split(max(1, _FLOATS // floats))
    return torch.cat([_attend_densely(piece, layer, *source.read(piece.places)) for piece in pieces])


def _attend_densely(tiles: _Tiles, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Over k and v float32 [tiles, kv_heads, keys, dim]. Keys and values that no query sees may be NaN."""
    q = tiles.q.float().unflatten(2, (layer.kv_heads, -1)).movedim(1, 3)  # [tiles, kv_heads, ratio, queries, dim]
    scores = (q.flatten(2, 3) @ k.transpose(2, 3)).view(*q.shape[:-1], -1) * layer.scale
    if layer.soft_cap:
        scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
    distance = tiles.positions[..., None] - torch.arange(k.shape[2], device=k.device)
    if layer.alibi is not None:
        scores = scores - _by_head(layer.alibi, layer) * distance[:, None, None].abs()
    if layer.biases is not None:
        biases = layer.biases.float()[:, distance.clamp(0, layer.biases.shape[1] - 1)]
        scores = scores + biases.unflatten(0, (layer.kv_heads, -1)).movedim(2, 0)
    visible = _visible(distance, tiles.length, layer)
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    if layer.pattern is not None:
        chosen = layer.pattern.see(tiles.positions, k.shape[2], layer.heads)
        scores = scores.masked_fill(~chosen.unflatten(1, (layer.kv_heads, -1)), -torch.inf)
    if layer.sinks is not None:
        sinks = _by_head(layer.sinks, layer).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    seen = visible.any(1)[:, None, :, None]
    out = weights.flatten(2, 3) @ torch.where(seen, v, 0.0)
    return out.view(*q.shape[:-1], -1).movedim(3, 1).flatten(2, 3).to(tiles.q.dtype)


def _by_head(values: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """[heads] as float32 that broadcasts over scores [tiles, kv_heads, ratio, queries, keys]."""
    return values.float().view(layer.kv_heads, -1, 1, 1)


def _visible(distance: torch.Tensor, length: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """Bool [tiles, queries, keys]; ``distance`` is query position minus key position."""
    visible = (torch.arange(distance.shape[2], device=distance.device) < length[:, None, None]).expand_as(distance)
    if layer.causal:
        visible = visible & (distance >= 0)
    return visible if layer.window is None else visible & (distance.abs() < layer.window)
