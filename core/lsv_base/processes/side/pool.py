"""A few side processes of one kind, each with one command at a time, replaced when one hangs or crashes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from lsv_base.errors import Overloaded, Unavailable
from lsv_base.processes.side.process import Kind, SideProcess
from lsv_base.processes.side.turns import NOBODY, Owner, Place, Turns
from lsv_base.processes.wire import Received, Sent

_log = logging.getLogger(__name__)

_ABANDONED_SECONDS = 0.5
"""How long work may continue after its client has left. Most commands are faster than starting a new process."""

_LINE = 512
"""Commands of one tenant that may wait for a process."""

Made = TypeVar("Made")


class SidePool(Generic[Sent, Received]):
    """Runs commands in at most ``size`` processes, which are started on demand.

    Owners of commands take turns. ``seconds`` limits a command, or each reply of a command with several. The latter
    leave one process free if ``size`` is above 1. One event loop uses the pool, in a thread that must outlive it.
    """

    def __init__(self, kind: Kind, init: Sent, *, seconds: float, size: int) -> None:
        self._kind = kind
        self._seconds = seconds
        self._idle: list[SideProcess[Sent, Received]] = [SideProcess(kind, init) for _ in range(size)]
        self._busy: set[SideProcess[Sent, Received]] = set()
        self._turns = Turns(size)
        self._long_turns = Turns(max(1, size - 1))
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="side")
        self._work: dict[asyncio.Task[object], SideProcess[Sent, Received]] = {}
        self._told = False

    def warm(self) -> None:
        """Start the first process, so that the first command does not wait for its imports."""
        if not self._idle[-1].running:
            self._idle[-1].start()

    def keep_off(self, cores: Collection[int]) -> None:
        """Keep the processes off these cores, if other cores are left."""
        left = frozenset(os.sched_getaffinity(0)) - frozenset(cores)
        for process in (*self._idle, *self._busy) if left else ():
            process.stay_on(left)

    async def initialize(self) -> None:
        """Wait until the first process is ready; raises as ``SideProcess.initialize``."""
        await asyncio.shield(await self._begin(SideProcess.initialize))

    async def ask(self, command: Sent, owner: Owner = NOBODY) -> Received:
        """The reply to a command, as ``SideProcess.ask``. Cancelling also ends the work in the process."""
        work = await self._begin(lambda process: process.ask(command, self._seconds), owner)
        try:
            return await asyncio.shield(work)
        finally:
            self._abandon(work)

    async def ask_all(
        self, command: Sent, is_last: Callable[[Received], bool], owner: Owner = NOBODY
    ) -> AsyncGenerator[Received, None]:
        """Yield the replies as they arrive, as ``SideProcess.ask_all``. Closing early also ends the work."""
        arrived: asyncio.Queue[Received | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def take(reply: Received) -> bool:
            loop.call_soon_threadsafe(arrived.put_nowait, reply)
            return not is_last(reply)

        self._check_line(self._long_turns, owner)
        place = await self._long_turns.take(owner)
        try:
            work = await self._begin(lambda process: process.ask_all(command, take, self._seconds), owner)
        except BaseException:
            self._long_turns.give_back(place)
            raise
        work.add_done_callback(lambda _: self._long_turns.give_back(place))
        work.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (reply := await arrived.get()) is not None:
                yield reply
            await work
        finally:
            self._abandon(work)

    def close(self) -> None:
        """Kill all processes; commands in progress fail."""
        for process in self._idle:
            process.end()
        for process in self._busy:
            process.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _begin(
        self, act: Callable[[SideProcess[Sent, Received]], Made], owner: Owner = NOBODY
    ) -> asyncio.Task[Made]:
        """Call ``act`` in a process once it is the owner's turn. Raises ``Overloaded`` if its line is full."""
        self._check_line(self._turns, owner)
        place = await self._turns.take(owner)
        process = self._idle.pop()
        work = asyncio.create_task(self._run(process, act))
        self._work[work] = process
        work.add_done_callback(lambda work: self._finish(work, place))
        return work

    def _check_line(self, turns: Turns, owner: Owner) -> None:
        waiting = turns.waiting(owner.tenant)
        if waiting >= _LINE:
            raise Overloaded(f"{waiting} requests are waiting for the process that {self._kind.what}: try again later")

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
        """Raises ``Unavailable`` if the system can't start another process."""
        try:
            process.start()
        except OSError as cause:
            raise Unavailable(f"the process that {self._kind.what} can't be started: {cause.strerror}") from None

    def _abandon(self, work: asyncio.Task[Made]) -> None:
        """End work that does not finish soon, because its client is gone."""

        def kill() -> None:
            if not work.done():
                self._work[work].kill()

        if not work.done():
            asyncio.get_running_loop().call_later(_ABANDONED_SECONDS, kill)

    def _finish(self, work: asyncio.Task[Any], place: Place) -> None:
        self._turns.give_back(place)
        del self._work[work]
        if not work.cancelled():
            work.exception()  # the waiting task has seen the exception, or is gone

    def _tell(self, process: SideProcess[Sent, Received]) -> None:
        """Log once which confinement measures processes of this kind lack."""
        if self._told or not process.measures:
            return
        self._told = True
        for measure in process.measures:
            if not measure.held:
                _log.warning("the process that %s: %s %s", self._kind.what, measure.name, measure.found)
