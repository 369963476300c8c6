"""Processes killed one after the other, while clients go on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from random import Random

from trials.server import TrialServer

_GIVE_UP = 60.0
_KINDS = ("engine", "media", "engine")


async def kill_processes(server: TrialServer, seconds: float, every: float, rng: Random) -> list[float]:
    """For ``seconds``; how long it took after each kill of an engine until the server was ready again."""
    until = time.monotonic() + seconds
    ready: list[float] = []
    number = 0
    while time.monotonic() < until:
        await asyncio.sleep(rng.uniform(0.5, 1.0) * every)
        kind = _KINDS[number % len(_KINDS)]
        number += 1
        for pid in rng.sample(found, 1) if (found := server.find(kind)) else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if kind == "engine":
            await asyncio.sleep(0.2)  # until its end has been noticed
            ready.append(0.2 + await asyncio.to_thread(server.wait_until_ready, _GIVE_UP))
    return ready
