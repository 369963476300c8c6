"""Clients that visit a server, each one visit after the other, until the time is over."""

from __future__ import annotations

import asyncio
import time
from random import Random

import httpx2

from trials.soak.tally import Tally
from trials.soak.visits import Visits

_TIMEOUT = httpx2.Timeout(None, connect=30.0)


def open_client(url: str) -> httpx2.AsyncClient:
    """Visits have their own deadlines."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx2.AsyncClient(base_url=url, timeout=_TIMEOUT, limits=limits, trust_env=False)


async def visit(
    url: str, visits: Visits, tally: Tally, *, clients: int, seconds: float, patience: float, seed: str
) -> None:
    """``clients`` at a time for ``seconds``; a visit that takes over ``patience`` seconds is hung."""
    until = time.monotonic() + seconds

    async def one_client(number: int) -> None:
        count = 0
        async with open_client(url) as http:
            while time.monotonic() < until:
                count += 1
                await _one_visit(http, visits, tally, patience, f"{seed} {number} {count}")

    await asyncio.gather(*(one_client(number) for number in range(clients)))


async def _one_visit(http: httpx2.AsyncClient, visits: Visits, tally: Tally, patience: float, seed: str) -> None:
    rng = Random(seed)
    kind, act = visits.draw(rng)
    error: BaseException | None = None
    try:
        async with asyncio.timeout(patience):
            await act(http, rng)
    except Exception as cause:
        error = cause
    tally.count(kind, seed, error)
    if error is not None:
        await asyncio.sleep(1.0)  # a server that refuses everything is not asked a thousand times a second
