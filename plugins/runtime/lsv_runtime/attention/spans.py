"""Tokens that see one another, as those of an image do: to a backend, those of a step are a row without causality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsv.request.media import Span
from lsv_runtime.attention import BatchLayout, Int32s
from lsv_runtime.attention.tables import TableRows

Int64s = npt.NDArray[np.int64]
Tables = tuple[Int32s | TableRows, ...]


@dataclass(frozen=True, slots=True)
class SeenRow:
    """A row of a step."""

    begin: int
    """Where its first token is in the step."""
    start: int
    """That token's index in the sequence."""
    stop: int
    """The index behind its last one."""
    spans: Sequence[Span]
    """Where in the sequence there are tokens that see one another."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemLayout:
    """The tokens of a step that see one another, by items, which are images or prompts."""

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
        for start, stop in row.spans:
            if start < row.stop and row.start < stop:
                assert stop <= row.stop, "a step cuts tokens that see one another"
                first = max(start, row.start)
                found.append((number, row.begin + first - row.start, stop - first, stop))
    if not found:
        return None
    number, begin, count, stop = np.array(found, np.int64).T
    places = np.concatenate([np.arange(first, first + size) for first, size in zip(begin, count, strict=True)])
    return ItemLayout(places, BatchLayout(count.astype(np.int32), stop.astype(np.int32), tables(number)))
