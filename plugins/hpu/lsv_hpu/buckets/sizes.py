"""The sizes that one dimension of a step is padded to. Whole numbers only.

Rules: Gaudi documentation, "Bucketing Mechanism" (linear, exponential and padding-aware strategies).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from math import inf

_CANDIDATES = 200


def linear(low: int, step: int, high: int) -> tuple[int, ...]:
    """``low`` doubled as long as it is below ``step``, then the multiples of ``step``; all from ``low`` to ``high``.

    linear(2, 32, 64) is 2, 4, 8, 16, 32, 64.
    """
    ramp = []
    value = low
    while value < step and value <= high:
        ramp.append(value)
        value *= 2
    first = -(-max(low, step) // step) * step
    return (*ramp, *range(first, high + 1, step))


def exponential(low: int, step: int, high: int, count: int, *, fill: bool = False) -> tuple[int, ...]:
    """At most ``count`` values from ``low`` to ``high`` at equal ratios, each rounded up to a multiple of ``step``.

    Values that fall together are one; with ``fill`` the later takes the nearest multiple that is free instead.
    A ``low`` of 0 or 1 stands by itself, and the ratios begin at ``step``. exponential(128, 128, 2048, 10) is
    128, 256, 384, 512, 640, 896, 1152, 1536, 2048.
    """
    start = step if low <= 1 else low
    values = {low} if low <= 1 else set[int]()
    if high <= start or count < 2:
        return tuple(sorted({*(value for value in values if value < high), high}))
    for place in range(count):
        value = min(high, _at_ratio(start, step, high, place, count - 1))
        if value in values and fill:
            value = _nearest_free(start * (high / start) ** (place / (count - 1)), step, high, values)
        values.add(value)
    return tuple(sorted(values))


def _at_ratio(low: int, step: int, high: int, place: int, places: int) -> int:
    """The first multiple of ``step`` that reaches low * (high / low) ** (place / places), without rounding errors."""
    target: int = low ** (places - place) * high**place
    factor: int = max(1, round(low * (high / low) ** (place / places) / step))
    while factor > 1 and ((factor - 1) * step) ** places >= target:
        factor -= 1
    while (factor * step) ** places < target:
        factor += 1
    return factor * step


def _nearest_free(wanted: float, step: int, high: int, taken: set[int]) -> int:
    """A multiple of ``step`` up to ``high`` that is not taken; ``high`` where all are."""
    free = (value for value in range(step, high + 1, step) if value not in taken)
    return min(free, key=lambda value: abs(value - wanted), default=high)


def padding_aware(low: int, step: int, high: int, most: int, percent: int) -> tuple[int, ...]:
    """``low`` doubled (from 0 to 1) past ``step``, then as few values at distances of ``step`` as padding allows.

    No value is further than ``most`` + 1 above the one before it, or more than ``percent`` of itself; multiples of
    ``most`` are always in. padding_aware(0, 8, 64, 16, 50) is 0, 1, 2, 4, 8, 16, 32, 48, 64.
    """
    values, value = [low], low
    while value <= step:
        value = max(1, 2 * value)
        if value <= high:
            values.append(value)
    while value <= high:
        following = value + step
        padding = following - values[-1] - 1
        if (100 * padding > percent * following or padding > most or value % most == 0) and value != values[-1]:
            values.append(value)
        value = following
    return tuple(values) if values[-1] == high else (*values, high)


def fitted(demand: Mapping[int, int], most: int, top: int, grain: int = 1) -> list[tuple[int, ...]]:
    """The sizes that pad a ``demand`` (size -> how often) least: with one size, with two, up to ``most`` of them.

    ``top`` is always the last, all others are multiples of ``grain``. Found by dynamic programming: the least cost of
    all demand up to a size, with so many sizes, comes from the least cost up to the size before it.
    """
    sizes, often = _cells(demand, top, grain)
    total = [0, *accumulate(often)]
    ends = range(1, len(sizes) + 1)
    costs = [0.0] + [inf] * len(sizes)
    cuts: list[list[int]] = []
    for _ in range(min(most, len(sizes))):
        found = [
            min((costs[cut] + sizes[end - 1] * (total[end] - total[cut]), cut) for cut in range(end)) for end in ends
        ]
        costs = [inf, *(cost for cost, _ in found)]
        cuts.append([0, *(cut for _, cut in found)])
    return [_trace(sizes, cuts[: number + 1]) for number in range(len(cuts))]


def _cells(demand: Mapping[int, int], top: int, grain: int) -> tuple[list[int], list[int]]:
    """Candidate sizes, ascending and few enough to try all, and how often each is the smallest that suffices."""
    spread = max(1, len({-(-size // grain) for size in demand}) // _CANDIDATES) * grain
    cells: Counter[int] = Counter({top: 0})
    for size, times in demand.items():
        cells[min(top, -(-size // spread) * spread)] += times
    return sorted(cells), [cells[size] for size in sorted(cells)]


def _trace(sizes: list[int], cuts: list[list[int]]) -> tuple[int, ...]:
    found, end = [], len(sizes)
    for row in reversed(cuts):
        found.append(sizes[end - 1])
        end = row[end]
    return tuple(reversed(found))
