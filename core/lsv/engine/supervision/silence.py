"""The silence of an engine, as a client sees it that can't look at the process."""

from __future__ import annotations

import asyncio
import time

from lsv.errors import EngineDied, LsvError

_LOOK = 0.5
"""Seconds between looks at how long the engine has been silent."""


class Silence:
    """How long the engine has said nothing, and whether it may."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since = time.monotonic()

    def end(self, limit: float | None = None) -> None:
        """It has said something; from now on it may be silent for ``limit`` seconds."""
        self._since = time.monotonic()
        self._limit = self._limit if limit is None else limit

    async def wait_for_hang(self) -> LsvError:
        """Wait until it has been silent for too long; what that means."""
        suspected = False
        while True:
            await asyncio.sleep(min(_LOOK, self._limit / 4))
            silent = time.monotonic() - self._since > self._limit
            if silent and suspected:  # still so, after this event loop had time to read what may have arrived
                return EngineDied(f"the engine hangs: it has said nothing for {self._limit:g} s")
            suspected = silent
