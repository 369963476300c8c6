"""Which program computes what in a step: made with its plan, by the contexts that the step's rows really have.

The keys of a row are cut into segments at fixed positions: ``2 * doubling`` of equal length, ``doubling`` of twice
that, ``doubling`` of twice that again, and so on. So the longest is a small part of what lies before it, and a context
of any length has few of them. A *unit* is some consecutive segments of a tile of queries, and is computed by one
program for each KV head. Most tiles are one unit; long ones are cut into several, whose results, a *part* for each
token and segment, are merged in order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsv_runtime.attention import BatchLayout, Int32s

Int64s = npt.NDArray[np.int64]

NOBODY = 1 << 30
"""As a tile's first token: lies behind those of any row, and so there is nothing to do."""

_NOTHING: Int64s = np.zeros((0, 4), np.int64)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the layers of a group are computed, as far as a schedule must know."""

    queries: int
    """Tokens of a tile, unless every row has one."""

    causal: bool
    window: int | None

    programs: int
    """As many for a KV head are to have about the same number of keys."""

    segment: int
    """Keys of the first segments."""

    doubling: int
    """Segments from one doubling of their length to the next."""

    most_parts: int
    """As many as there may be room for."""

    def segment_at(self, position: Int64s) -> Int64s:
        """Which segments positions lie in."""
        units = position // self.segment
        level = np.frexp(units // self.doubling)[1].clip(1) - 1
        found: Int64s = level * self.doubling + (units >> level)
        return found

    def sizes(self, tokens: int, rows: int, longest: int) -> Sizes:
        """Those of a step in which a row has at most ``longest`` keys, by its shape alone."""
        tiles, queries = (rows, 1) if tokens == rows else (tokens // self.queries + rows, self.queries)
        if self.window is not None:
            longest = min(longest, self.window + queries)
        if longest <= self.segment:
            return Sizes(tiles, queries, 0, 0)
        segments = 2 + int(self.segment_at(np.array(longest)))
        cut = min(tiles, self.programs)
        return Sizes(tiles + self.programs, queries, cut, min(cut * queries * segments, self.most_parts))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there can be of what a schedule counts."""

    units: int
    queries: int
    """Tokens of a tile."""
    cut: int
    """Tiles of more than one unit."""
    parts: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What the programs of a step do; what is left of the bounds has the first token ``NOBODY``."""

    units: Int32s
    """[units, 5]: row, first token, first segment, the one behind the last, and the number of the first part, or -1
    where the unit is all of its tile. Parts of a segment are numbered by token."""

    cut: Int32s
    """[cut, 4]: row, first token, number of the first part, segments."""


def make_schedule(batch: BatchLayout, tiling: Tiling, longest: int) -> Schedule:
    """The schedule of a flat batch whose rows have at most ``longest`` keys."""
    if tiling.window is None and (batch.query == 1).all():
        segments = -(-batch.context // tiling.segment)
        return _schedule_decoding(tiling, longest, segments.astype(np.int32).tobytes())
    return _schedule(batch.query, batch.context, tiling, longest)


@functools.lru_cache(maxsize=64)
def _schedule_decoding(tiling: Tiling, longest: int, segments: bytes) -> Schedule:
    """That of rows with a token each, by how many of the shortest segments, int32, have their keys. Where in its last
    segment a context ends is no matter, so most steps have the schedule of the one before.
    """
    context = np.frombuffer(segments, np.int32) * np.int32(tiling.segment)
    return _schedule(np.ones_like(context), context, tiling, longest)


def _schedule(query: Int32s, context: Int32s, tiling: Tiling, longest: int) -> Schedule:
    sizes = tiling.sizes(int(query.sum()), len(query), longest)
    row, first, count = _cut_rows(query, sizes.queries)
    begin, end = _seen(context[row], query[row], first, count, tiling)
    keys, low, high = end - begin, tiling.segment_at(begin), tiling.segment_at(end - 1) + 1
    pieces, parts = _cut_tiles(keys, high - low, count, tiling, sizes)
    units, cut = np.stack((row, first, low, high, np.full_like(row, -1)), axis=1), _NOTHING
    if parts is not None:
        divided = pieces > 1
        units[:, 4] = np.where(divided, np.cumsum(parts) - parts, -1)
        cut = units[divided][:, [0, 1, 4, 3]]
        cut[:, 3] -= low[divided]
        units, keys = _divide(units, begin, keys, count, pieces, tiling)
    order = np.argsort(-keys, kind="stable")  # the longest first
    return Schedule(_fill(units[order], sizes.units), _fill(cut, sizes.cut))


def _divide(
    units: Int64s, begin: Int64s, keys: Int64s, count: Int64s, pieces: Int64s, tiling: Tiling
) -> tuple[Int64s, Int64s]:
    """Tiles in ``pieces`` of about as many keys each, cut where segments end: the units, and the keys of each."""
    tile = np.arange(len(units)).repeat(pieces)
    piece = np.arange(len(tile)) - (np.cumsum(pieces) - pieces)[tile]
    _, _, low, high, part = units[tile].T
    start = tiling.segment_at(begin[tile] + keys[tile] * piece // pieces[tile])
    stop = np.where(piece + 1 == pieces[tile], high, np.append(start[1:], 0))
    part = np.where(part < 0, part, part + (start - low) * count[tile])
    busy = stop > start
    divided = np.stack((*units[tile, :2].T, start, stop, part), axis=1)[busy]
    return divided, (keys // pieces)[tile[busy]]


def _cut_rows(query: Int32s, queries: int) -> tuple[Int64s, Int64s, Int64s]:
    """By tile its row, which of the row's tokens is its first, and how many it has."""
    rows = np.arange(len(query))
    if queries == 1:
        return rows, np.zeros_like(rows), np.ones_like(rows)
    tiles = -(-query // queries)
    row = rows.repeat(tiles)
    first = (np.arange(len(row)) - (np.cumsum(tiles) - tiles)[row]) * queries
    return row, first, np.minimum(query[row] - first, queries)


def _seen(length: Int32s, query: Int32s, first: Int64s, count: Int64s, tiling: Tiling) -> tuple[Int64s, Int64s]:
    """The keys [begin, end) that a tile's queries see, as the kernel has it."""
    lowest: Int64s = first + (length - query)
    highest = lowest + count - 1
    begin, end = np.zeros_like(lowest), length.astype(np.int64)
    if tiling.window is not None:
        begin, end = np.maximum(0, lowest - tiling.window + 1), np.minimum(length, highest + tiling.window)
    return begin, highest + 1 if tiling.causal else end


def _cut_tiles(
    keys: Int64s, segments: Int64s, count: Int64s, tiling: Tiling, sizes: Sizes
) -> tuple[Int64s, Int64s | None]:
    """Into how many units to cut each tile, and its parts: 0 where it is left whole, None where all are."""
    share = max(int(keys.sum()) / tiling.programs, tiling.segment)
    if not sizes.cut or keys.max() <= share:
        return np.ones_like(keys), None
    parts = np.where(segments > 1, segments * count, 0)
    while parts[keys > share].sum() > sizes.parts:
        share *= 2
    pieces = np.minimum(np.ceil(keys / share).astype(np.int64), segments)
    return pieces, np.where(pieces > 1, parts, 0)


def _fill(numbers: Int64s, length: int) -> Int32s:
    """``numbers`` [some, columns] as int32 [length, columns]."""
    filled = np.zeros((length, numbers.shape[1]), np.int32)
    filled[:, 1] = NOBODY
    filled[: len(numbers)] = numbers
    return filled
