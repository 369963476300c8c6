"""Threads for the work that stands before a request is sent: parsing, templates, tokenising."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from lsv_base.processes.side.turns import Owner, Place, Turns

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

SHORT = 8192
"""Characters or bytes below which work takes less time than the event loop can be kept waiting: it is done at once."""
LONG = 1 << 19
"""Characters or bytes from which work may take so long that it must not have all threads."""
THREADS = 4
_CORES_OF_A_LONG_JOB = 4
"""A long job computes for seconds: with fewer cores for each at a time, engine and event loop would wait for them."""


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PreparingPool:
    """Runs work of requests in threads. Owners take turns, and so do the requests of one owner.

    Long jobs leave one thread free for other work, and most cores to the engine. Only work that releases the
    interpreter's lock gains from several threads; other work at least takes turns with the event loop.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="lsv-prepare")
        self._short_turns = Turns(threads)
        self._long_turns = Turns(max(1, min(threads - 1, usable_cores() // _CORES_OF_A_LONG_JOB)))

    async def run(
        self,
        owner: Owner,
        size: int,
        work: Callable[Arguments, Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """What ``work`` returns; ``size`` is about the characters or bytes that it goes through.

        Work that has begun goes on when the caller is cancelled, and keeps its place until it has ended.
        """
        if size < SHORT:
            return work(*args, **kwargs)
        turns = self._short_turns if size < LONG else self._long_turns
        place = await turns.take(owner)
        job = self._threads.submit(work, *args, **kwargs)
        job.add_done_callback(_giving_back(turns, place, asyncio.get_running_loop()))
        return await asyncio.wrap_future(job)


def _giving_back(turns: Turns, place: Place, loop: asyncio.AbstractEventLoop) -> Callable[[Future[Any]], None]:
    def give_back(job: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(turns.give_back, place)

    return give_back
