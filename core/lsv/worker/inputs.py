"""A plan's rows as the flat arrays a step computes: ids, positions, block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsv.attention import BatchLayout
from lsv.platform import Shape
from lsv.scheduler.plan import Rows, StepPlan
from lsv.worker.slots import BlockTables, Slot

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """The step on the host: T flat tokens of R rows, in row order.

    ids and positions int64 [T]; ``last`` int64 [R] is the flat index of each row's last token; by ``shape`` a
    warmed-up form of the step is found.
    """

    ids: Int64s
    positions: Int64s
    layout: BatchLayout
    last: Int64s
    shape: Shape


def build_batch(plan: StepPlan, slots: Sequence[Slot], tables: Sequence[BlockTables], block_size: int) -> Batch:
    """Lay out the tokens of the plan's rows, which are in these ``slots``; every token must be there already."""
    rows = plan.rows
    start = np.array(rows.start, np.int64)
    count = np.array(rows.count, np.int64)
    context = start + count
    longest = max(rows.count)
    ids, positions, last = _singles(rows, slots, start) if longest == 1 else _spans(rows, slots, count, context)
    width = -(-int(context.max()) // block_size)
    numbers = np.array(rows.slot, np.int64)
    return Batch(
        ids=ids,
        positions=positions,
        layout=BatchLayout(
            query=count.astype(np.int32),
            context=context.astype(np.int32),
            tables=tuple(table.rows(numbers, width) for table in tables),
        ),
        last=last,
        shape=Shape(plan.kind, len(rows), longest, width),
    )


def _singles(rows: Rows, slots: Sequence[Slot], start: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Ids, positions and ``last`` where each row has one token, as all steps but those with prompts do."""
    ids = [slot.tokens.at(place) for slot, place in zip(slots, rows.start, strict=True)]
    return np.array(ids, np.int64), start, np.arange(len(ids))


def _spans(rows: Rows, slots: Sequence[Slot], count: Int64s, context: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Ids, positions and ``last`` of any rows."""
    end = np.cumsum(count)
    spans = zip(slots, rows.start, context.tolist(), strict=True)
    ids = np.concatenate([slot.ids[first:last] for slot, first, last in spans])
    assert len(ids) == end[-1], "a row computes tokens that its slot does not hold"
    return ids.astype(np.int64), np.arange(end[-1]) + np.repeat(context - end, count), end - 1


def dummy_batch(shape: Shape, groups: int) -> Batch:
    """Rows of token 0 that write to the null page only: for warming up a shape."""
    tokens = shape.rows * shape.query
    return Batch(
        ids=np.zeros(tokens, np.int64),
        positions=np.tile(np.arange(shape.query), shape.rows),
        layout=BatchLayout(
            query=np.full(shape.rows, shape.query, np.int32),
            context=np.full(shape.rows, shape.query, np.int32),
            tables=tuple(np.zeros((shape.rows, shape.blocks), np.int32) for _ in range(groups)),
        ),
        last=np.arange(1, shape.rows + 1) * shape.query - 1,
        shape=shape,
    )
