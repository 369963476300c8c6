"""The fewest replicas that keep times under a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulate.figures import Figures


@dataclass(frozen=True)
class Target:
    """Milliseconds that 99 of 100 requests, or gaps between tokens, must not exceed."""

    ttft: float = 1000.0
    itl: float = 100.0

    def is_met(self, figures: Figures) -> bool:
        return (
            figures.done > 0 and 1000 * figures.ttft.at(0.99) <= self.ttft and 1000 * figures.itl.at(0.99) <= self.itl
        )


def find_fewest(run: Callable[[int], Figures], target: Target, most: int) -> tuple[int, Figures] | None:
    """A number of replicas and what they do; None where ``most`` are too few. More are taken to be never worse."""
    found: dict[int, Figures] = {}

    def suffices(replicas: int) -> bool:
        found[replicas] = run(replicas)
        return target.is_met(found[replicas])

    high = 1
    while not suffices(high):
        if high == most:
            return None
        high = min(2 * high, most)
    low = high // 2
    # Within 2 %: the figures are no more exact.
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high, found[high]
