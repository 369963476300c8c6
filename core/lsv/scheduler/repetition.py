"""Finds out that an answer only repeats itself."""

from __future__ import annotations

from collections import deque

from lsv.request.repetition import RepetitionDetectionParams


class Repetition:
    """The patterns at the end of one answer.

    For each size it counts for how many tokens in a row each was the one that stands as many places before it. A
    pattern of that size stands ``n`` times at the end once that count is ``n - 1`` times the size. So a token costs no
    more than a look at each place where it stood before, as far back as a pattern can reach.
    """

    __slots__ = ("_asked", "_length", "_places", "_runs")

    def __init__(self, asked: RepetitionDetectionParams) -> None:
        self._asked = asked
        self._length = 0
        self._places: dict[int, deque[int]] = {}
        """Where each token stood."""
        self._runs: dict[int, int] = {}
        """The counts that are not zero, by size."""

    def add(self, token: int) -> bool:
        """Whether the answer ends with repetitions, now that it has this token, too."""
        asked, here = self._asked, self._length
        places = self._places.setdefault(token, deque())
        while places and here - places[0] > asked.max_pattern_size:
            places.popleft()
        before = self._runs
        sizes = [here - place for place in places]
        self._runs = runs = {size: before.get(size, 0) + 1 for size in sizes if size >= asked.min_pattern_size}
        places.append(here)
        self._length += 1
        return any(run >= size * (asked.min_count - 1) for size, run in runs.items())
