"""The silence of an engine, as a client sees it that can't look at the process."""

from __future__ import annotations

import asyncio
import math
import time

from lsv_base.errors import EngineDied, LsvError

_LOOK = 0.5
"""Seconds between looks at how long the engine has been silent."""


_MISSED = 3
"""Number of missed heartbeats after which an engine is not ready."""


class Silence:
    """How long the engine has said nothing, and whether it may."""

    def __init__(self, limit: float, beat: float = math.inf) -> None:
        """``limit`` as in ``end``; ``beat`` is the interval of heartbeats in seconds."""
        self._limit, self._usual = limit, _MISSED * beat
        self._since = time.monotonic()
        self._works = self._misses = False

    @property
    def missing(self) -> float:
        """Seconds of silence once several heartbeats are missing; 0 until then."""
        return time.monotonic() - self._since if self._misses else 0.0

    def end(self, limit: float | None = None, *, works: bool | None = None) -> None:
        """Record a message; from now on the engine may be silent for ``limit`` seconds.

        While it ``works`` on an announced task, such as loading, it sends no heartbeats.
        """
        self._since, self._misses = time.monotonic(), False
        self._limit = self._limit if limit is None else limit
        self._works = self._works if works is None else works

    async def wait_for_hang(self) -> LsvError:
        """Wait until it has been silent for too long; what that means."""
        suspected = late = False
        while True:
            await asyncio.sleep(min(_LOOK, self._limit / 4, self._usual / 4))
            silent = time.monotonic() - self._since
            # silent at a second check too, after this event loop had time to read messages
            if suspected and silent > self._limit:
                return EngineDied(f"the engine hangs: it has said nothing for {self._limit:g} s")
            self._misses = late and silent > self._usual and not self._works
            suspected, late = silent > self._limit, silent > self._usual
