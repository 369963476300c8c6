"""How long steps of so many tokens take, as far as the latest ones tell."""

from __future__ import annotations

from bisect import bisect_left, insort

_EXACT = 16
"""Up to so many tokens every number of them is a size of its own; from there on sizes are an eighth apart."""
_SAMPLES, _LATEST = 3, 16
"""Steps of a size before it counts as known, and how many of the latest ones weigh."""
_OLD = 64
"""Steps after which what is known of a size weighs no more than at first: the machine may be busier now, or less."""
_FAR = 1.5
"""By how much a single step may seem longer or shorter than is known: what else a machine does makes some last long."""
_FRESH = 1024
"""Steps after which a size that did not come up is forgotten: contexts grow."""


class _Size:
    """What is known of steps of a size."""

    __slots__ = ("_longer", "count", "latest", "seconds")

    def __init__(self) -> None:
        self.count = self.latest = 0
        self.seconds = self._longer = 0.0

    def begin(self, seconds: float) -> None:
        """One of the first three steps, of which the middle one is what is known then."""
        self.count += 1
        if self.count == 1:
            self.seconds = self._longer = seconds
        elif self.count == _SAMPLES:
            self.seconds = max(self.seconds, min(self._longer, seconds))
        else:
            self.seconds, self._longer = min(self.seconds, seconds), max(self.seconds, seconds)


class StepTimes:
    """Seconds by tokens of steps without prompts, as the latest steps of a size took on average: what is gained by
    steps of another size is gained on average, too.

    Between sizes that are known the times lie on a line. A step larger than any that is known is taken to last no
    longer, so that it is tried, unless times are said to be rising with sizes: then they go on as from the smallest to
    the largest that is known. Of one smaller than all of them nothing is known.
    """

    def __init__(self, *, rising: bool = False) -> None:
        self._rising = rising
        self._by_size: dict[int, _Size] = {}
        self._sizes: list[int] = []  # those that are known, ascending

    def learn(self, tokens: int, seconds: float, step: int) -> None:
        """From the step of this number. Takes hardly any time, as it is called for every one."""
        if seconds <= 0:  # a step that was over when the one before it was: its own time is not known
            return
        size = tokens if tokens <= _EXACT else _size(tokens)
        one = self._by_size.get(size)
        if one is None:
            one = self._by_size[size] = _Size()
        old, one.latest, known = step - one.latest > _OLD, step, one.seconds
        if one.count >= _SAMPLES:
            one.count = _SAMPLES if old else min(one.count + 1, _LATEST)
            if one.count == _LATEST:
                seconds = min(max(seconds, known / _FAR), known * _FAR)
            one.seconds = known + (seconds - known) / one.count
            return
        one.begin(seconds)
        if one.count == _SAMPLES:
            insort(self._sizes, size)

    def of(self, tokens: int) -> float:
        """Seconds of a step of ``tokens``; 0 while nothing is known of it."""
        size = tokens if tokens <= _EXACT else _size(tokens)
        one, sizes = self._by_size.get(size), self._sizes
        if one is not None and one.count >= _SAMPLES:
            return one.seconds
        if not sizes or size < sizes[0]:
            return 0.0
        place = bisect_left(sizes, size)
        before = self._by_size[sizes[place - 1]].seconds
        if place == len(sizes):
            return before + (size - sizes[-1]) * self._slope() if self._rising else before
        share = (size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        return before + share * (self._by_size[sizes[place]].seconds - before)

    def age(self, tokens: int, step: int) -> int:
        """How many steps before the step of this number one of ``tokens`` was known last; 0 for an unknown size."""
        one = self._by_size.get(_size(tokens))
        return 0 if one is None else step - one.latest

    @property
    def smallest(self) -> int:
        """The fewest tokens of a step that is known."""
        return self._sizes[0] if self._sizes else 0

    @property
    def largest(self) -> int:
        """The most tokens of a step that is known."""
        return self._sizes[-1] if self._sizes else 0

    def _slope(self) -> float:
        """By how much a step of one token more lasts longer, going by the smallest and the largest size."""
        first, last = self._sizes[0], self._sizes[-1]
        longer = self._by_size[last].seconds - self._by_size[first].seconds
        return max(0.0, longer / (last - first)) if last > first else 0.0

    def forget(self, step: int) -> None:
        """Drop the sizes that have not come up of late, as seen from the step of this number."""
        for size in [size for size, one in self._by_size.items() if one.latest < step - _FRESH]:
            if self._by_size.pop(size).count >= _SAMPLES:
                self._sizes.remove(size)


def _size(tokens: int) -> int:
    """The number that stands for ``tokens`` and its neighbours."""
    if tokens <= _EXACT:
        return tokens
    step = 1 << (tokens.bit_length() - 4)
    return -(-tokens // step) * step
