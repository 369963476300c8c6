"""Finds out that an answer only repeats itself."""

from __future__ import annotations

import numpy as np

from lsv.request.repetition import RepetitionDetectionParams


class Repetition:
    """The patterns at the end of one answer.

    For each size it counts for how many tokens in a row each was the one that stands as many places before it. A
    pattern of that size stands ``n`` times at the end once that count is ``n - 1`` times the size. So a token costs one
    comparison a size, however long the answer is.
    """

    __slots__ = ("_before", "_needed", "_runs", "_shortest")

    def __init__(self, asked: RepetitionDetectionParams) -> None:
        self._shortest = max(1, asked.min_pattern_size)
        sizes = np.arange(self._shortest, asked.max_pattern_size + 1)
        self._needed = sizes * (asked.min_count - 1)
        self._runs = np.zeros(len(sizes), np.int64)
        self._before = np.full(asked.max_pattern_size, -1, np.int64)
        """The last tokens, the latest first."""

    def add(self, token: int) -> bool:
        """Whether the answer ends with repetitions, now that it has this token, too."""
        self._runs = (self._runs + 1) * (self._before[self._shortest - 1 :] == token)
        self._before[1:] = self._before[:-1]
        self._before[0] = token
        return bool((self._runs >= self._needed).any())
