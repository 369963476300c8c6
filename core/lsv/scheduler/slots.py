"""The worker's slots: small numbers that are used again."""

from __future__ import annotations


class Slots:
    """Slots 0 … count-1. A slot given back can be taken at once: its ``end`` is in the plan that takes it or before."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._ended: list[int] = []

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give(self, slot: int) -> None:
        self._free.append(slot)
        self._ended.append(slot)

    def take_ended(self) -> tuple[int, ...]:
        """Slots given back since the last call, for the next plan's ``end``."""
        ended, self._ended = tuple(self._ended), []
        return ended
