"""How long steps of so many tokens take, as far as the latest ones tell."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

_EXACT = 16
"""Up to so many tokens every number of them is a size of its own; from there on sizes are an eighth apart."""
_SAMPLES, _LATEST = 3, 12
"""Steps of a size before it counts as known, and the latest of it that are looked at."""
_FRESH = 512
"""Steps after which a size that did not come up is forgotten: contexts grow, and a few slow steps are no rule."""


class StepTimes:
    """Seconds by tokens of steps without prompts: the least of the latest steps of a size, since what else a machine
    does makes steps longer, never shorter.

    Between sizes that are known the times lie on a line. A step larger than any that is known is taken to last no
    longer, so that it is tried; of one smaller than all of them nothing is known.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._latest: dict[int, int] = {}
        self._steps = 0
        self._sizes: list[int] = []  # those that are known, ascending
        self._least: list[float] = []

    def learn(self, tokens: int, seconds: float) -> None:
        if seconds <= 0:  # a step that was over when the one before it was: its own time is not known
            return
        size = _size(tokens)
        self._steps += 1
        self._latest[size] = self._steps
        times = self._seconds.get(size)
        if times is None:
            times = self._seconds[size] = deque(maxlen=_LATEST)
        times.append(seconds)
        if len(times) >= _SAMPLES:
            self._know(size, min(times))
        if not self._steps % _EXACT:
            self._forget()

    def of(self, tokens: int) -> float:
        """Seconds of a step of ``tokens``; 0 while nothing is known of it."""
        sizes, least = self._sizes, self._least
        if not sizes or _size(tokens) < sizes[0]:
            return 0.0
        place = bisect_left(sizes, tokens)
        if place == len(sizes) or place == 0:
            return least[min(place, len(sizes) - 1)]
        share = (tokens - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        return least[place - 1] + share * (least[place] - least[place - 1])

    def _know(self, size: int, seconds: float) -> None:
        place = bisect_left(self._sizes, size)
        if place == len(self._sizes) or self._sizes[place] != size:
            self._sizes.insert(place, size)
            self._least.insert(place, seconds)
        self._least[place] = seconds

    def _forget(self) -> None:
        """Drop the sizes that have not come up of late."""
        for size in [one for one, step in self._latest.items() if step < self._steps - _FRESH]:
            del self._latest[size], self._seconds[size]
            if size in self._sizes:
                place = self._sizes.index(size)
                del self._sizes[place], self._least[place]


def _size(tokens: int) -> int:
    """The number that stands for ``tokens`` and its neighbours."""
    if tokens <= _EXACT:
        return tokens
    step = 1 << (tokens.bit_length() - 4)
    return -(-tokens // step) * step
