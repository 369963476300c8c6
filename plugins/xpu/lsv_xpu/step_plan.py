"""What the layers of a KV group share in a step, in the form vendors' attention ops take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lsv.attention import BatchLayout, Int32s


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """Row r has tokens ``starts[r]:starts[r + 1]`` of the step, ``context[r]`` tokens with those before, which are
    ``ends[r]:ends[r + 1]`` of all rows' tokens, and blocks ``tables[r]``. K and V of token t go to ``slots[t]``, its
    page times the block size plus its place there. ``slots`` is int64, all others are int32.

    Blocks behind a window, which may be anybody's by now, are left out: ops compute what they then hide, and NaN would
    survive that. A row's context is the shorter by them.

    ``longest_query`` and ``longest_context`` are bounds; a plan that is written into keeps its own, which a captured
    step has seen.
    """

    numbers: torch.Tensor
    slots: torch.Tensor
    rows: int
    longest_query: int
    longest_context: int

    @property
    def starts(self) -> torch.Tensor:
        return self.numbers[: self.rows + 1]

    @property
    def ends(self) -> torch.Tensor:
        return self.numbers[self.rows + 1 : 2 * self.rows + 2]

    @property
    def context(self) -> torch.Tensor:
        return self.numbers[2 * self.rows + 2 : 3 * self.rows + 2]

    @property
    def tables(self) -> torch.Tensor:
        return self.numbers[3 * self.rows + 2 :].view(self.rows, -1)

    @property
    def decoding(self) -> bool:
        """Whether every row has one token."""
        return len(self.slots) == self.rows


def make_plan(
    batch: BatchLayout, table: Int32s, block_size: int, device: torch.device, window: int | None = None
) -> StepPlan:
    numbers, slots = _numbers(batch, table, block_size, window)
    width = max(table.shape[1], batch.blocks)
    longest = width * block_size if batch.blocks else int(batch.context.max())
    return StepPlan(
        torch.from_numpy(numbers).to(device),
        torch.from_numpy(slots).to(device),
        len(batch.query),
        int(batch.query.max()),
        longest,
    )


def refill(plan: StepPlan, batch: BatchLayout, table: Int32s, block_size: int, window: int | None = None) -> StepPlan:
    """The same plan for another batch of its shape: its tensors stay where they are."""
    numbers, slots = _numbers(batch, table, block_size, window)
    assert (len(numbers), len(slots), len(batch.query)) == (len(plan.numbers), len(plan.slots), plan.rows)
    assert batch.query.max() <= plan.longest_query, "a row is longer than the plan's longest"
    assert batch.context.max() <= plan.longest_context, "a context is longer than the plan's longest"
    plan.numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
    plan.slots.copy_(torch.from_numpy(slots), non_blocking=True)
    return plan


def _numbers(
    batch: BatchLayout, table: Int32s, block_size: int, window: int | None
) -> tuple[Int32s, np.typing.NDArray[np.int64]]:
    query, context = batch.query.astype(np.int64), batch.context.astype(np.int64)
    starts = _borders(query)
    slots = np.zeros(int(starts[-1]), np.int64)
    tables = np.zeros((len(query), max(table.shape[1], batch.blocks)), np.int64)
    if table.shape[1]:
        row = np.repeat(np.arange(len(query)), query)
        position = np.maximum(np.arange(len(slots)) + np.repeat(context - starts[1:], query), 0)
        slots = table[row, position // block_size].astype(np.int64) * block_size + position % block_size
        behind = np.zeros_like(context)
        if window is not None:
            behind = np.maximum(context - query - window + 1, 0) // block_size
        column = np.arange(table.shape[1]) + behind[:, None]
        live = column < table.shape[1]
        rows = np.arange(len(query))[:, None]
        tables[:, : table.shape[1]] = np.where(live, table[rows, np.where(live, column, 0)], 0)
        context = context - behind * block_size
    return np.concatenate((starts, _borders(context), context, tables.ravel())).astype(np.int32), slots


def _borders(counts: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
