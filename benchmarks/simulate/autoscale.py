"""Servers by how many requests wait, as Kubernetes' HorizontalPodAutoscaler counts them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from simulate.clock import Clock
from simulate.fleet import Fleet

_TOLERANCE = 0.1
"""Part of the target by which the load may be off before anything is changed, as in Kubernetes."""


@dataclass(frozen=True)
class Scale:
    """Numbers of servers; ``waiting`` is the requests that may wait at each."""

    least: int
    most: int
    waiting: float = 4.0
    load: float = 60.0
    """Seconds until a new server is ready."""
    period: float = 15.0
    hold: float = 300.0
    """Seconds for which the highest number that was wanted is kept."""


class Autoscaler:
    """Adds and removes servers of a fleet from now on."""

    def __init__(self, clock: Clock, fleet: Fleet, scale: Scale) -> None:
        self._clock, self._fleet, self._scale = clock, fleet, scale
        self._wanted: deque[tuple[float, int]] = deque()
        clock.after(scale.period, self._look)

    def _look(self) -> None:
        there = [server for server in self._fleet.servers if not server.drains]
        wanted = self._want(len(there), sum(server.waiting for server in there))
        for _ in range(len(there), wanted):
            self._fleet.add(self._scale.load)
        for _ in range(wanted, len(there)):
            self._fleet.remove()
        self._clock.after(self._scale.period, self._look)

    def _want(self, there: int, waiting: int) -> int:
        scale, now = self._scale, self._clock.now
        ratio = waiting / (there * scale.waiting)
        wanted = there if abs(ratio - 1) <= _TOLERANCE else math.ceil(ratio * there)
        self._wanted.append((now, min(max(wanted, scale.least), scale.most)))
        while self._wanted[0][0] < now - scale.hold:
            self._wanted.popleft()
        highest = max(count for _, count in self._wanted)
        return max(min(there, highest), self._wanted[-1][1])
