"""The worker's slots: small numbers that are reused."""

from __future__ import annotations


class SlotPool:
    """Slots 0 … count-1. A slot given back can be taken at once: the plan that takes it, or one before, ends it."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._ended: list[int] = []

    @property
    def free(self) -> int:
        """How many slots can be taken."""
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)
        self._ended.append(slot)

    def take_ended(self) -> tuple[int, ...]:
        """Slots given back since the last call, for the next plan's ``end``."""
        ended, self._ended = tuple(self._ended), []
        return ended
