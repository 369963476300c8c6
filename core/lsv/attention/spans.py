"""Items of media whose tokens see one another: to a backend, an item's tokens of a step are a row without causality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsv.attention import BatchLayout, Int32s
from lsv.attention.tables import TableRows
from lsv.request.media import Media

Int64s = npt.NDArray[np.int64]
Tables = tuple[Int32s | TableRows, ...]


@dataclass(frozen=True, slots=True)
class SeenRow:
    """A row of a step that has media in its prompt."""

    begin: int
    """Where its first token is in the step."""
    start: int
    """That token's index in the sequence."""
    stop: int
    """The index behind its last one."""
    media: Sequence[Media]


@dataclass(frozen=True, slots=True, eq=False)
class ItemLayout:
    """The tokens of a step that belong to items."""

    places: Int64s
    """int64 [S]: where they are in the step, item by item."""
    layout: BatchLayout
    """A row for each item: its tokens in the step, and all up to its end."""


def find_items(rows: Iterable[SeenRow], tables: Callable[[Int64s], Tables]) -> ItemLayout | None:
    """The items of a step, None where there are none. ``tables`` gives the block tables of rows by their numbers.

    A step has all that is left of an item.
    """
    found: list[tuple[int, int, int, int]] = []
    for number, row in enumerate(rows):
        for item in row.media:
            if not item.cross and item.start < row.stop and row.start < item.stop:
                assert item.stop <= row.stop, "a step cuts an item whose tokens see one another"
                first = max(item.start, row.start)
                found.append((number, row.begin + first - row.start, item.stop - first, item.stop))
    if not found:
        return None
    number, begin, count, stop = np.array(found, np.int64).T
    places = np.concatenate([np.arange(first, first + size) for first, size in zip(begin, count, strict=True)])
    return ItemLayout(places, BatchLayout(count.astype(np.int32), stop.astype(np.int32), tables(number)))
