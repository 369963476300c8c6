"""Events in order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    """``now`` is in seconds. Events of one moment happen in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Action]] = []

    def at(self, time: float, action: Action) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._order), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def run(self, until: float) -> None:
        """Let everything happen that is due by then."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until
