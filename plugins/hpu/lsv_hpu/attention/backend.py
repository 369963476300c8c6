"""The attention backend ``hpu-flat``: padded batches and index tensors whose shapes do not depend on values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lsv.kv.spec import KVGroup
from lsv_hpu import selection
from lsv_hpu.attention.cache import FlatCache, LayerCache, make_cache
from lsv_hpu.attention.flat import attend_blocks
from lsv_hpu.attention.prompt import Sight, attend_causally, attend_fused, attend_plainly
from lsv_hpu.vendor_ops import VendorOps
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.plan import pack, split
from lsv_runtime.devices.device import Device

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SingleTokens:
    """A step of one token per row, over one list of all blocks of the batch; see ``attend_blocks``. All but ``mapping``
    are views of ``memory``.
    """

    memory: torch.Tensor

    slots: torch.Tensor
    """int64 [R]: where K and V of each token go."""

    alive: torch.Tensor
    """int64 [R]: 0 for padding."""

    pages: torch.Tensor
    """int64 [N]: the page of each block."""

    rows: torch.Tensor
    """int64 [N]: the row of each block."""

    distance: torch.Tensor
    """int64 [N]: how many tokens before the row's query a block begins."""

    mapping: torch.Tensor
    """float32 [N, R]: one-hot, the row of each block."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """A step of ``span`` places per row. All tensors are views of ``memory``."""

    span: int

    memory: torch.Tensor

    slots: torch.Tensor
    """int64 [R * span]: where K and V of each token go."""

    alive: torch.Tensor
    """int64 [R * span]: 0 for padding."""

    starts: torch.Tensor
    """int64 [R]: position of each row's first token in this step."""

    lengths: torch.Tensor
    """int64 [R]: tokens of each row in this step."""

    context: torch.Tensor
    """int64 [R]: tokens of each row, those of earlier steps included."""

    pages: torch.Tensor | None
    """int64 [R * W]: the blocks of all tokens; None if rows attend to the tokens of this step alone."""


FlatPlan = SingleTokens | Prompts


class FlatAttention(PagedBackend):
    """Flat paged attention for single tokens, Intel's fused kernel for prompts. Without ``ops`` it uses those selected
    for the process.

    Not row-invariant: the device chooses the order in which products over all blocks of a batch are added up.
    """

    def __init__(self, ops: VendorOps | None = None, *, fused: bool | None = None) -> None:
        self._given, self._fused = ops, selection.fused_prompts() if fused is None else fused

    @property
    def _ops(self) -> VendorOps:
        return self._given or selection.ops()

    def make_cache(self, spec: CacheSpec, device: Device) -> FlatCache:
        return make_cache(spec, device.torch_device, self._ops, selection.calibration())

    def plan(self, batch: BatchLayout, group: KVGroup, into: FlatPlan | None = None) -> FlatPlan:
        """Shapes follow from rows, span and ``batch.blocks``, or from what the batch needs if that is more."""
        assert batch.span > 0, "hpu-flat takes padded batches"
        table = self.table_of(batch, group).astype(np.int64)
        if batch.span == 1 and table.shape[1]:
            return self._plan_single_tokens(batch, table, group, into)
        return self._plan_prompts(batch, table, into, across=group.kind == "cross")

    def _plan_single_tokens(
        self, batch: BatchLayout, table: Int64s, group: KVGroup, into: FlatPlan | None
    ) -> SingleTokens:
        slots, alive = self._places(batch, table)
        last = batch.context.astype(np.int64) - 1
        rows, columns = np.nonzero(table[:, : -(-int(batch.context.max()) // self.block_size)])
        apart = last[rows] - columns * self.block_size
        behind = np.inf if group.window is None else group.window + self.block_size - 1
        seen = (apart >= 0) & (apart < behind)
        rows, columns, apart = rows[seen], columns[seen], apart[seen]
        count = max(len(rows), batch.blocks)
        lists = {
            "slots": slots,
            "alive": alive,
            "pages": _padded(table[rows, columns], count, 0),
            "rows": _padded(rows, count, len(table)),
            "distance": _padded(apart, count, -1),
        }
        if isinstance(into, SingleTokens):
            self._overwrite(into.memory, lists)
            into.mapping.copy_(_one_hot(into.rows, len(table)))
            return into
        tensors = self._send(lists)
        return SingleTokens(**tensors, mapping=_one_hot(tensors["rows"], len(table)))

    def _plan_prompts(self, batch: BatchLayout, table: Int64s, into: FlatPlan | None, *, across: bool) -> Prompts:
        slots, alive = self._places(batch, table)
        context, query = batch.context.astype(np.int64), batch.query.astype(np.int64)
        lists = {
            "slots": slots,
            "alive": alive,
            "starts": context - query,
            "lengths": query,
            "context": context,
        }
        if table.shape[1]:
            before = max(batch.blocks, -(-int((context - query).max()) // self.block_size))
            if before > 0 or across:
                width = before + -(-batch.span // self.block_size)
                wide = np.zeros((len(table), width), np.int64)
                wide[:, : table.shape[1]] = table[:, :width]
                lists["pages"] = wide.reshape(-1)
        if isinstance(into, Prompts):
            self._overwrite(into.memory, lists)
            return into
        return Prompts(batch.span, **{"pages": None, **self._send(lists)})  # type: ignore[arg-type]

    def _places(self, batch: BatchLayout, table: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Where in the cache each place of the step is written to, 0 for padding; and which places are tokens."""
        place = np.arange(batch.span)
        alive = place < batch.query[:, None]
        if not table.shape[1]:
            return np.zeros(batch.tokens, np.int64), alive.reshape(-1)
        position = np.maximum((batch.context - batch.query)[:, None] + place, 0)
        column = np.minimum(position // self.block_size, table.shape[1] - 1)
        pages = np.take_along_axis(table, column, axis=1)
        alive &= pages > 0
        slots = np.where(alive, pages * self.block_size + position % self.block_size, 0)
        return slots.reshape(-1), alive.reshape(-1)

    def _send(self, lists: dict[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
        """The lists on the device, as views of ``memory``: one copy, for each takes its time whatever its size."""
        memory = torch.from_numpy(pack(tuple(lists.values()), np.int64)).to(self.torch_device)
        return {"memory": memory, **dict(zip(lists, split(memory, tuple(lists.values())), strict=True))}

    def _overwrite(self, memory: torch.Tensor, lists: dict[str, npt.NDArray[Any]]) -> None:
        memory.copy_(torch.from_numpy(pack(tuple(lists.values()), np.int64)))

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: FlatCache | LayerCache | None,
        plan: FlatPlan,
    ) -> torch.Tensor:
        cache = None if cache is None else cache.of(layer)
        q = _zero_padding(q, plan)
        if k is not None and v is not None:
            k, v = _zero_padding(k, plan), _zero_padding(v, plan)
            if cache is not None:
                k, v = cache.write(k, v, layer, plan.slots)
        if isinstance(plan, Prompts):
            return self._attend_prompts(q, k, v, layer, cache, plan)
        assert cache is not None, "single tokens with blocks need the cache these are in"
        keys, values = cache.read(plan.pages, layer, q.dtype)
        return attend_blocks(q, keys, values, plan.rows, plan.distance, plan.mapping, layer)

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: FlatCache, plan: FlatPlan) -> None:
        cache.of(layer).write(_zero_padding(k, plan), _zero_padding(v, plan), layer, plan.slots)

    def _attend_prompts(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: LayerCache | None,
        plan: Prompts,
    ) -> torch.Tensor:
        queries = q.unflatten(0, (-1, plan.span))
        plain = layer.soft_cap is None and layer.sinks is None and layer.alibi is None
        if plan.pages is None or cache is None:
            if k is None or v is None:
                assert cache is not None, "there must be keys and values, or a cache of them"
                k, v = cache.read_tokens(plan.slots, layer, q.dtype)
            keys, values = k.unflatten(0, (-1, plan.span)), v.unflatten(0, (-1, plan.span))
            if self._fused and plain and layer.causal and layer.window is None:
                return attend_causally(queries, keys, values, plan.lengths.int(), layer, self._ops).flatten(0, 1)
            sight = self._sight_of_step(plan)
        else:
            sight = self._sight_of_cache(plan)
            hidden = (sight.keys < 0)[..., None, None]
            keys, values = (
                blocks.reshape(len(plan.starts), -1, *blocks.shape[2:]).masked_fill(hidden, 0.0)
                for blocks in cache.read(plan.pages, layer, q.dtype)
            )
        if self._fused and plain:
            return attend_fused(queries, keys, values, sight, layer, self._ops).flatten(0, 1)
        return attend_plainly(queries, keys, values, sight, layer).flatten(0, 1)

    def _sight_of_step(self, plan: Prompts) -> Sight:
        place = torch.arange(plan.span, device=plan.starts.device)
        keys = (plan.starts[:, None] + place).masked_fill(plan.alive.view(-1, plan.span) == 0, -1)
        return Sight(plan.starts, keys)

    def _sight_of_cache(self, plan: Prompts) -> Sight:
        """Pages are in the order of positions; the null page holds nothing."""
        assert plan.pages is not None
        pages = plan.pages.view(len(plan.starts), -1).repeat_interleave(self.block_size, 1)
        position = torch.arange(pages.shape[1], device=pages.device)
        there = (position < plan.context[:, None]) & (pages > 0)
        return Sight(plan.starts, position.expand_as(pages).masked_fill(~there, -1))


def _zero_padding(x: torch.Tensor, plan: FlatPlan) -> torch.Tensor:
    return x.masked_fill((plan.alive == 0)[:, None, None], 0.0)


def _one_hot(rows: torch.Tensor, count: int) -> torch.Tensor:
    """float32 [N, count] of rows int64 [N]; one that is ``count`` has no column."""
    return (rows[:, None] == torch.arange(count, device=rows.device)).float()


def _padded(values: Int64s, count: int, filler: int) -> Int64s:
    out = np.empty(count, np.int64)
    out[: len(values)], out[len(values) :] = values, filler
    return out
