"""What the layers of a KV group share in a step, in the form vendors' attention ops take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lsv.attention import BatchLayout, Int32s
from lsv.attention.plan import overwrite, pack, pad_table, row_starts, send, split, token_slots
from lsv.platform import Device


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """``slots`` is int64; all other tensors are int32 views of ``numbers``.

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
    """[rows, blocks]: the pages of each row."""

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
    table: Int32s,
    block_size: int,
    device: Device | None,
    window: int | None = None,
    into: StepPlan | None = None,
) -> StepPlan:
    """The plan of a flat batch over the block table [rows, blocks], on the host if there is no device.

    It has tensors of its own or, given ``into``, is that plan of a batch of the same shape: its tensors stay in place.
    """
    starts, table = row_starts(batch), pad_table(batch, table)
    slots = token_slots(batch, starts, table, block_size)
    context, tables = _without_hidden(batch, table, block_size, window)
    parts = (starts, np.concatenate((np.zeros(1, np.int64), context.cumsum())), context, tables)
    numbers = pack(parts, np.int32)
    if into is not None:
        return _refill(into, batch, numbers, slots, device)
    memory = send(numbers, device)
    longest = table.shape[1] * block_size if batch.blocks else int(batch.context.max())
    return StepPlan(memory, *split(memory, parts), send(slots, device), int(batch.query.max()), longest)


def _refill(
    plan: StepPlan, batch: BatchLayout, numbers: Int32s, slots: npt.NDArray[np.int64], device: Device | None
) -> StepPlan:
    assert (len(numbers), len(slots), len(batch.query)) == (len(plan.numbers), len(plan.slots), plan.rows)
    assert batch.query.max() <= plan.longest_query, "a row is longer than the plan's longest"
    assert batch.context.max() <= plan.longest_context, "a context is longer than the plan's longest"
    overwrite(plan.numbers, numbers, device)
    overwrite(plan.slots, slots, device)
    return plan


def _without_hidden(
    batch: BatchLayout, table: Int32s, block_size: int, window: int | None
) -> tuple[npt.NDArray[np.int64], Int32s]:
    """Contexts and tables without the blocks that lie behind the window of a row's first token."""
    context = batch.context.astype(np.int64)
    if window is None or not table.shape[1]:
        return context, table
    behind = np.maximum(context - batch.query - window + 1, 0) // block_size
    column = np.arange(table.shape[1]) + behind[:, None]
    live = column < table.shape[1]
    rows = np.arange(len(table))[:, None]
    return context - behind * block_size, np.where(live, table[rows, np.where(live, column, 0)], 0)
