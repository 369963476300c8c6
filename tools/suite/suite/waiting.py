"""Waits for conditions. A test that sleeps instead only hopes that it sleeps long enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_SECONDS = 30.0


async def until(condition: Callable[[], object], seconds: float = _SECONDS) -> None:
    """Run the event loop until ``condition`` holds. Fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it was not so within {seconds:g} s"
        await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], object], seconds: float = _SECONDS) -> None:
    """As ``until``, without an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it was not so within {seconds:g} s"
        time.sleep(0.005)
