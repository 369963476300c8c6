"""The media workers of a server: a few, each with one item at a time, replaced when one hangs or crashes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lsv.media.items import AudioChunk, Prepared
from lsv_multimodal.worker.messages import Init, Prepare, SplitAudio
from lsv_multimodal.worker.process import WorkerProcess

Made = TypeVar("Made")


class WorkerPool:
    """Prepares items in at most ``size`` processes, which are started when they are needed.

    One event loop uses it, in a thread that must outlive the pool.
    """

    def __init__(self, init: Init, *, seconds: float, size: int | None = None) -> None:
        self._size = size or _default_size()
        self._seconds = seconds
        self._idle = [WorkerProcess(init) for _ in range(self._size)]
        self._busy: set[WorkerProcess] = set()
        self._slots = asyncio.Semaphore(self._size)
        self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="media")
        self._work: set[asyncio.Task[object]] = set()

    def warm(self) -> None:
        """Start the first process, so that the first item does not wait for its imports."""
        if not self._idle[-1].running:
            self._idle[-1].start()

    def keep_off(self, cores: Collection[int]) -> None:
        """Leave cores of the processor to others, where there are more."""
        left = frozenset(os.sched_getaffinity(0)) - frozenset(cores)
        for process in (*self._idle, *self._busy) if left else ():
            process.stay_on(left)

    async def initialize(self) -> None:
        """Wait until the first process has loaded the processor; raises as ``WorkerProcess.initialize``."""
        await asyncio.shield(await self._begin(WorkerProcess.initialize))

    async def prepare(self, command: Prepare) -> Prepared:
        """An item prepared, as ``WorkerProcess.prepare``. Cancelling leaves the process to end its work alone."""
        work = await self._begin(lambda process: process.prepare(command, self._seconds))
        return await asyncio.shield(work)

    async def split_audio(self, command: SplitAudio) -> AsyncGenerator[AudioChunk, None]:
        """The chunks as they come, as ``WorkerProcess.split_audio``. Closing early leaves the process to its work."""
        arrived: asyncio.Queue[AudioChunk | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def take(chunk: AudioChunk) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, chunk)

        work = await self._begin(lambda process: process.split_audio(command, take, self._seconds))
        work.add_done_callback(lambda _: arrived.put_nowait(None))
        while (chunk := await arrived.get()) is not None:
            yield chunk
        await work

    def close(self) -> None:
        """Kill all processes; what is in progress fails."""
        for process in self._idle:
            process.end()
        for process in self._busy:
            process.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _begin(self, act: Callable[[WorkerProcess], Made]) -> asyncio.Task[Made]:
        """Have a process act as soon as one is free."""
        await self._slots.acquire()
        work = asyncio.create_task(self._run(act))
        self._work.add(work)
        work.add_done_callback(self._finish)
        return work

    async def _run(self, act: Callable[[WorkerProcess], Made]) -> Made:
        process = self._idle.pop()
        self._busy.add(process)
        try:
            if not process.running:
                process.start()
            return await asyncio.get_running_loop().run_in_executor(self._threads, act, process)
        finally:
            self._busy.discard(process)
            self._idle.append(process)

    def _finish(self, work: asyncio.Task[object]) -> None:
        self._slots.release()
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # the task that waited has seen it, or has gone


def _default_size() -> int:
    """A quarter of the cores: at least two, so that one long video does not keep images waiting, and at most four."""
    return max(2, min(4, len(os.sched_getaffinity(0)) // 4))
