"""What the layers of a KV group share in a step, in the form vendors' attention ops take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lsv_runtime.attention import BatchLayout, Int32s
from lsv_runtime.attention.plan import overwrite, pack, place_table, row_starts, send, split, table_shape, token_slots
from lsv_runtime.attention.tables import TableRows, blocks_at
from lsv_runtime.devices.device import Device


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """``slots`` is int64; all others are int32, and all but ``tables`` views of ``numbers``.

    Blocks behind a window, which may be in anybody's use by now, are left out, and a row's context is the shorter by
    them: ops compute with what they then hide, and NaN would survive that.
    """

    numbers: torch.Tensor

    starts: torch.Tensor
    """[rows + 1]: row r has the tokens ``starts[r]:starts[r + 1]`` of the step."""

    ends: torch.Tensor
    """[rows + 1]: ``context`` added up."""

    context: torch.Tensor
    """[rows]: tokens of each row, those of earlier steps included."""

    tables: torch.Tensor
    """[rows, blocks]: the pages of each row; with a window as many as it and the row's tokens may lie in."""

    slots: torch.Tensor
    """[tokens]: where K and V of each token go, its page times the block size plus its place in the page."""

    longest_query: int
    """Bounds the tokens of a row; like ``longest_context`` it is kept when the plan is refilled, as a captured step has
    seen it.
    """

    longest_context: int
    """Bounds the context of a row."""

    @property
    def rows(self) -> int:
        return self.context.shape[0]

    @property
    def decoding(self) -> bool:
        """Whether every row has one token."""
        return self.slots.shape[0] == self.rows


def make_plan(
    batch: BatchLayout,
    table: Int32s | TableRows,
    block_size: int,
    device: Device | None,
    window: int | None = None,
    into: StepPlan | None = None,
) -> StepPlan:
    """The plan of a flat batch over the block table [rows, blocks], on the host if there is no device.

    It has tensors of its own or, given ``into``, is that plan of a batch of the same shape: its tensors stay in place.
    """
    starts = row_starts(batch)
    slots = token_slots(batch, starts, table, block_size)
    context, table, shape = without_hidden(batch, table, block_size, window)
    parts = (starts, np.concatenate((np.zeros(1, np.int64), context.cumsum())), context)
    numbers = pack(parts, np.int32)
    if into is not None:
        assert tuple(into.tables.shape) == tuple(shape), "the plan is of a batch of another shape"
        place_table(table, shape, device, into.tables)
        return _refill(into, batch, numbers, slots, int(context.max()), device)
    memory, tables = send(numbers, device), place_table(table, shape, device)
    first, ends, lengths = split(memory, parts)
    longest = shape[1] * block_size if batch.blocks else int(batch.context.max())
    return StepPlan(memory, first, ends, lengths, tables, send(slots, device), int(batch.query.max()), longest)


def plan_pages(batch: BatchLayout, page: int, device: Device | None) -> StepPlan:
    """A plan for a step without a cache, whose rows get consecutive pages of ``page`` tokens."""
    width = -(-int(batch.context.max()) // page)
    table = np.arange(len(batch.query) * width, dtype=np.int32).reshape(-1, width)
    return make_plan(BatchLayout(batch.query, batch.context, ()), table, page, device)


def _refill(
    plan: StepPlan,
    batch: BatchLayout,
    numbers: Int32s,
    slots: npt.NDArray[np.int64],
    longest: int,
    device: Device | None,
) -> StepPlan:
    assert (len(numbers), len(slots), len(batch.query)) == (len(plan.numbers), len(plan.slots), plan.rows)
    assert batch.query.max() <= plan.longest_query, "a row is longer than the plan's longest"
    assert longest <= plan.longest_context, "a context is longer than the plan's longest"
    overwrite(plan.numbers, numbers, device)
    overwrite(plan.slots, slots, device)
    return plan


def without_hidden(
    batch: BatchLayout, table: Int32s | TableRows, block_size: int, window: int | None
) -> tuple[npt.NDArray[np.int64], Int32s | TableRows, tuple[int, int]]:
    """Contexts and tables without the blocks that lie behind the window of a row's first token, and the shape that the
    tables are to have.
    """
    context, (rows, width) = batch.context.astype(np.int64), table_shape(batch, table)
    if window is None or not width:
        return context, table, (rows, width)
    behind = np.maximum(context - batch.query - window + 1, 0) // block_size
    width = min(width, -(-(window - 1 + int(batch.query.max())) // block_size) + 1)
    column = np.arange(width) + behind[:, None]
    live = column < table.shape[1]
    found = blocks_at(table, np.arange(rows)[:, None], np.where(live, column, 0))
    return context - behind * block_size, np.where(live, found, 0), (rows, width)
