"""Places that many want, of which nobody gets more than a few."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """``total`` places, of which one party holds at most ``each``. One event loop uses it."""

    def __init__(self, total: int, each: int) -> None:
        self._places = asyncio.Semaphore(total)
        self._each = each
        self._parties: dict[str, asyncio.Semaphore] = {}
        self._present: dict[str, int] = {}

    @asynccontextmanager
    async def place(self, party: str) -> AsyncIterator[None]:
        """Hold a place, once there is one. Whoever waits for their own party's share keeps nobody else waiting."""
        own = self._parties.setdefault(party, asyncio.Semaphore(self._each))
        self._present[party] = self._present.get(party, 0) + 1
        try:
            async with own, self._places:
                yield
        finally:
            self._present[party] -= 1
            if not self._present[party]:
                del self._present[party], self._parties[party]
