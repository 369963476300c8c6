"""What programs of attention do in a step: all keys of every tile once, in even shares, with few parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lsv_runtime.attention import BatchLayout
from lsv_triton.attention.schedule import NOBODY, Schedule, Tiling, make_schedule

TILING = Tiling(queries=16, causal=True, window=None, programs=66, segment=512, doubling=16, most_parts=4096)
"""That of a model with 32 heads and 8 KV heads on an H200."""
LONGEST = 131072


def batch(query: Sequence[int], context: Sequence[int]) -> BatchLayout:
    return BatchLayout(np.array(query, np.int32), np.array(context, np.int32), ())


def border(segment: int, tiling: Tiling = TILING) -> int:
    """The first position of a segment, as in ``kernels._border``."""
    level = max(segment // tiling.doubling - 1, 0)
    return ((segment - level * tiling.doubling) << level) * tiling.segment


def busy(schedule: Schedule) -> list[list[int]]:
    return [unit for unit in schedule.units.tolist() if unit[1] < NOBODY]


def keys_of(unit: list[int], step: BatchLayout, tiling: Tiling) -> tuple[int, int]:
    """How many of a row's keys a unit is to pass over, and how many its tile sees."""
    row, first, start, stop, _ = unit
    query, length = int(step.query[row]), int(step.context[row])
    lowest, count = length - query + first, min(tiling.queries, query - first)
    begin = 0 if tiling.window is None else max(0, lowest - tiling.window + 1)
    end = lowest + count if tiling.causal else min(length, lowest + count - 1 + (tiling.window or length))
    return min(border(stop), end) - max(border(start), begin), end - begin


def test_segments_lie_at_fixed_positions_and_grow() -> None:
    borders = [border(segment) for segment in range(120)]
    assert borders[:3] == [0, 512, 1024]
    assert borders[32:35] == [16384, 17408, 18432]
    assert borders[80] == LONGEST
    found = TILING.segment_at(np.array([at for first in borders for at in (first, first + 511)]))
    assert found.tolist() == [segment for segment in range(120) for _ in range(2)]
    longest = np.diff(borders) / np.array(borders[1:])
    assert longest[32:].max() <= 1 / 16


def test_few_short_rows_have_few_programs() -> None:
    sizes = TILING.sizes(8, 8, LONGEST)
    assert (sizes.units, sizes.cut) == (8 + 66, 8)
    found = make_schedule(batch([1] * 8, [100] * 8), TILING, LONGEST)
    assert busy(found) == [[row, 0, 0, 1, -1] for row in range(8)]
    assert (found.cut[:, 1] == NOBODY).all()


def test_a_long_row_in_company_is_shared_out() -> None:
    context = [1000] * 256
    context[77] = LONGEST
    step = batch([1] * 256, context)
    units = busy(make_schedule(step, TILING, LONGEST))
    share = sum(context) / TILING.programs
    longest_segment = 4096
    own = [keys_of(unit, step, TILING)[0] for unit in units if unit[0] == 77]
    assert len(own) == -(-LONGEST // int(share))
    assert sum(own) == LONGEST
    assert max(own) <= share + longest_segment
    assert len(units) == 255 + len(own) <= TILING.sizes(256, 256, LONGEST).units
    assert [unit[0] for unit in units[: len(own)]] == [77] * len(own), "the longest are first"


def test_one_long_row_fills_the_programs() -> None:
    step = batch([1], [LONGEST])
    found = make_schedule(step, TILING, LONGEST)
    own = [keys_of(unit, step, TILING)[0] for unit in busy(found)]
    assert sum(own) == LONGEST
    assert max(own) <= LONGEST / TILING.programs + 4096
    assert found.cut.tolist() == [[0, 0, 0, 80]]


def test_equal_rows_are_left_whole() -> None:
    found = make_schedule(batch([1] * 256, [8192] * 256), TILING, LONGEST)
    assert {tuple(unit[2:]) for unit in busy(found)} == {(0, 16, -1)}


def test_parts_have_room() -> None:
    """Tiles are cut into larger pieces, or fewer of them, until what is left fits."""
    step = batch([1] * 40, [LONGEST] * 20 + [30000] * 20)
    for room in (4096, 1000, 100, 0):
        tiling = replace(TILING, most_parts=room)
        cut = [one for one in make_schedule(step, tiling, LONGEST).cut.tolist() if one[1] < NOBODY]
        assert sum(segments for *_, segments in cut) <= room
        assert bool(cut) == (room > 1600)


@pytest.mark.parametrize("window", [None, 3000])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("decoding", [True, False])
def test_units_cover_every_tile_once(decoding: bool, causal: bool, window: int | None) -> None:
    tiling = replace(TILING, causal=causal, window=window, most_parts=20000)
    random = np.random.default_rng(5)
    for rows in (1, 3, 40):
        query = np.ones(rows, np.int64) if decoding else random.integers(1, 90, rows)
        step = batch(query, query + (random.integers(0, 300, rows) ** 2))
        sizes = tiling.sizes(int(query.sum()), rows, LONGEST)
        found = make_schedule(step, tiling, LONGEST)
        assert (found.units.shape, found.cut.shape) == ((sizes.units, 5), (sizes.cut, 4))
        tiles = {(row, first) for row in range(rows) for first in range(0, int(query[row]), 16)}
        cut = {(row, first): (base, segments) for row, first, base, segments in found.cut.tolist() if first < NOBODY}
        assert {(row, first) for row, first, *_ in busy(found)} == tiles
        taken: list[int] = []
        for tile in tiles:
            own = sorted(unit for unit in busy(found) if (unit[0], unit[1]) == tile)
            assert all(one[3] == other[2] for one, other in itertools.pairwise(own))
            passed, seen = zip(*(keys_of(unit, step, tiling) for unit in own), strict=True)
            assert sum(passed) == seen[0]
            if tile not in cut:
                assert [unit[4] for unit in own] == [-1]
                continue
            base, segments = cut[tile]
            together = min(16, int(query[tile[0]]) - tile[1])
            assert own[-1][3] - own[0][2] == segments
            assert [unit[4] for unit in own] == [base + (unit[2] - own[0][2]) * together for unit in own]
            taken += range(base, base + segments * together)
        assert sorted(taken) == list(range(len(taken)))
        assert len(taken) <= sizes.parts
