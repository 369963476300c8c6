"""When requests run out of time."""

from __future__ import annotations

import heapq
from collections.abc import Container

_SPARE = 64
"""Deadlines of requests that have ended which may always be kept."""


class Deadlines:
    """The deadlines of request groups, the earliest first.

    Most requests end long before theirs: what these leave behind is dropped once it is more than half of all.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, id: int) -> None:
        """Group ``id`` is to end at ``deadline``, in seconds of the caller's clock."""
        heapq.heappush(self._heap, (deadline, id))

    def take_late(self, now: float) -> list[int]:
        """The groups whose deadline has passed since the last call; some may have ended."""
        late: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            late.append(heapq.heappop(self._heap)[1])
        return late

    def drop_ended(self, alive: Container[int], count: int) -> None:
        """Only ``alive`` groups, of which there are ``count``, have not ended."""
        if len(self._heap) > 2 * count + _SPARE:
            self._heap = [entry for entry in self._heap if entry[1] in alive]
            heapq.heapify(self._heap)
