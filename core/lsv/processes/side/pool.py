"""A few side processes of one kind, each with one command at a time, replaced when one hangs or crashes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from lsv.errors import Overloaded, Unavailable
from lsv.processes.side.process import Kind, SideProcess
from lsv.processes.wire import Received, Sent

_log = logging.getLogger(__name__)

_ABANDONED_SECONDS = 0.5
"""How long work may go on after its client has left: to start a new process takes longer than most commands."""

_LINE = 512
"""Commands that may wait for a process."""

Made = TypeVar("Made")


class SidePool(Generic[Sent, Received]):
    """Carries out commands in at most ``size`` processes, which are started when they are needed.

    ``seconds`` bounds a command. One event loop uses it, in a thread that must outlive the pool.
    """

    def __init__(self, kind: Kind, init: Sent, *, seconds: float, size: int) -> None:
        self._kind = kind
        self._seconds = seconds
        self._idle: list[SideProcess[Sent, Received]] = [SideProcess(kind, init) for _ in range(size)]
        self._busy: set[SideProcess[Sent, Received]] = set()
        self._slots = asyncio.Semaphore(size)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="side")
        self._work: dict[asyncio.Task[object], SideProcess[Sent, Received]] = {}
        self._waiting = 0
        self._told = False

    def warm(self) -> None:
        """Start the first process, so that the first command does not wait for its imports."""
        if not self._idle[-1].running:
            self._idle[-1].start()

    def keep_off(self, cores: Collection[int]) -> None:
        """Leave cores of the processor to others, where there are more."""
        left = frozenset(os.sched_getaffinity(0)) - frozenset(cores)
        for process in (*self._idle, *self._busy) if left else ():
            process.stay_on(left)

    async def initialize(self) -> None:
        """Wait until the first process is ready; raises as ``SideProcess.initialize``."""
        await asyncio.shield(await self._begin(SideProcess.initialize))

    async def ask(self, command: Sent) -> Received:
        """The reply to a command, as ``SideProcess.ask``. Cancelling ends the work in the process, too."""
        work = await self._begin(lambda process: process.ask(command, self._seconds))
        try:
            return await asyncio.shield(work)
        finally:
            self._abandon(work)

    async def ask_all(self, command: Sent, is_last: Callable[[Received], bool]) -> AsyncGenerator[Received, None]:
        """The replies as they come, as ``SideProcess.ask_all``. Closing early ends the work in the process, too."""
        arrived: asyncio.Queue[Received | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def take(reply: Received) -> bool:
            loop.call_soon_threadsafe(arrived.put_nowait, reply)
            return not is_last(reply)

        work = await self._begin(lambda process: process.ask_all(command, take, self._seconds))
        work.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (reply := await arrived.get()) is not None:
                yield reply
            await work
        finally:
            self._abandon(work)

    def close(self) -> None:
        """Kill all processes; what is in progress fails."""
        for process in self._idle:
            process.end()
        for process in self._busy:
            process.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _begin(self, act: Callable[[SideProcess[Sent, Received]], Made]) -> asyncio.Task[Made]:
        """Have a process act as soon as one is free. Raises ``Overloaded`` where too many wait for that."""
        if self._waiting >= _LINE:
            raise Overloaded(f"{self._waiting} others wait for the process that {self._kind.what}: try again later")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        process = self._idle.pop()
        work = asyncio.create_task(self._run(process, act))
        self._work[work] = process
        work.add_done_callback(self._finish)
        return work

    async def _run(
        self, process: SideProcess[Sent, Received], act: Callable[[SideProcess[Sent, Received]], Made]
    ) -> Made:
        self._busy.add(process)
        try:
            if not process.running:
                self._start(process)
            return await asyncio.get_running_loop().run_in_executor(self._threads, act, process)
        finally:
            self._busy.discard(process)
            self._idle.append(process)
            self._tell(process)

    def _start(self, process: SideProcess[Sent, Received]) -> None:
        """Raises ``Unavailable`` where the system has no room for another process."""
        try:
            process.start()
        except OSError as cause:
            raise Unavailable(f"the process that {self._kind.what} can't be started: {cause.strerror}") from None

    def _abandon(self, work: asyncio.Task[Made]) -> None:
        """End work that is not done soon: who asked for it has gone."""

        def kill() -> None:
            if not work.done():
                self._work[work].kill()

        if not work.done():
            asyncio.get_running_loop().call_later(_ABANDONED_SECONDS, kill)

    def _finish(self, work: asyncio.Task[object]) -> None:
        self._slots.release()
        del self._work[work]
        if not work.cancelled():
            work.exception()  # the task that waited has seen it, or has gone

    def _tell(self, process: SideProcess[Sent, Received]) -> None:
        """Log once what processes of this kind are not confined by."""
        if self._told or not process.measures:
            return
        self._told = True
        for measure in process.measures:
            if not measure.held:
                _log.warning("the process that %s: %s %s", self._kind.what, measure.name, measure.found)
