"""The side processes of a server: few, each for one item at a time, replaced when one hangs or falls."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from lsv.errors import BadRequest, LsvError, PluginError, RequestFailed, from_record
from lsv.media.orders import Answer, Cut, Equip, Prepare, Prepared, Refused, Window
from lsv.processes.wire import FrameReader, encode_frame
from lsv.request.media import Modality

_EQUIP_SECONDS = 120.0
"""How long imports and the loading of the processor may take."""

_READ = 1 << 20

Made = TypeVar("Made")


class Side:
    """One side process. ``start`` and ``end`` are quick, all else blocks and belongs into a thread.

    It dies with the thread that called ``start``.
    """

    def __init__(self, equip: Equip) -> None:
        self._equip = equip
        self._child: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._reader: FrameReader[Answer] = FrameReader(Answer)
        self._arrived: deque[Answer] = deque()
        self._equipped = False
        self._cores: frozenset[int] = frozenset()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        self.end()
        self._end, theirs = socket.socketpair()
        self._reader, self._arrived = FrameReader(Answer), deque()
        self._equipped = False
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "lsv.media.side", str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        self._move()
        with suppress(OSError):  # it died at once; whoever wants something prepared finds out
            self._end.sendall(encode_frame(self._equip))

    def stay_on(self, cores: frozenset[int]) -> None:
        """Have this process, and those that come in its place, run on some of the processor's cores alone."""
        self._cores = cores
        self._move()

    def _move(self) -> None:
        if self._cores and self._child is not None:
            with suppress(OSError):  # it has ended, or may not use these cores any more
                os.sched_setaffinity(self._child.pid, self._cores)

    def equip(self) -> None:
        """Wait until the processor is loaded. Raises why it can't be; the process has ended then."""
        if self._equipped:
            return
        try:
            self._receive(_EQUIP_SECONDS)
        except LsvError:
            self.end()
            raise
        except TimeoutError:
            self.end()
            raise PluginError(f"the model's processor was not loaded within {_EQUIP_SECONDS:g} s") from None
        except (EOFError, OSError, ValueError):
            self.end()
            raise RequestFailed("the process that prepares media ended before it was ready") from None
        self._equipped = True

    def prepare(self, order: Prepare, seconds: float) -> Prepared:
        """An item, prepared within ``seconds``, else the process is killed. Raises what the process refuses it with."""
        with self._watched(order.modality, seconds):
            self._send(order, seconds)
            answer = self._receive(seconds)
            assert isinstance(answer, Prepared), "an item is prepared or refused"
            return answer

    def cut(self, order: Cut, take: Callable[[Window], object], seconds: float) -> None:
        """Have ``take`` get the pieces of a sound, each within ``seconds`` of the one before; else as ``prepare``."""
        with self._watched("audio", seconds):
            self._send(order, seconds)
            last = False
            while not last:
                answer = self._receive(seconds)
                assert isinstance(answer, Window), "a sound is cut or refused"
                take(answer)
                last = answer.last

    def kill(self) -> None:
        """Kill the process, if there is one; a ``prepare`` that waits for it hears of that."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def end(self) -> None:
        """Kill the process and forget it; nobody may be waiting for it."""
        self.kill()
        if self._end is not None:
            self._end.close()
        self._child = self._end = None

    @contextmanager
    def _watched(self, modality: Modality, seconds: float) -> Iterator[None]:
        """Wait until the processor is loaded, then say what it means when an order comes to nothing."""
        self.equip()
        try:
            yield
        except TimeoutError:
            self.end()
            raise BadRequest(
                f"decoding and preparing the {modality} took more than {seconds:g} s (--media-timeout)"
            ) from None
        except (EOFError, OSError, ValueError):
            self.end()
            raise BadRequest(f"the {modality} can't be decoded: it broke the process that tried") from None

    def _send(self, order: Prepare | Cut, seconds: float) -> None:
        if self._end is None:
            raise EOFError
        self._end.settimeout(seconds)
        self._end.sendall(encode_frame(order))

    def _receive(self, seconds: float) -> Answer:
        """The next answer. Raises what was refused, ``TimeoutError`` …"""
        deadline = time.monotonic() + seconds
        while not self._arrived:
            if self._end is None:
                raise EOFError
            self._end.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._end.recv(_READ)
            if not data:
                raise EOFError
            self._arrived.extend(self._reader.feed(data))
        answer = self._arrived.popleft()
        if isinstance(answer, Refused):
            raise from_record(answer.error)
        return answer


class Pool:
    """Prepares items in at most ``size`` side processes, which are started when they are needed.

    One event loop uses it, in a thread that lives as long as the pool shall.
    """

    def __init__(self, equip: Equip, *, seconds: float, size: int | None = None) -> None:
        self._size = size or _default_size()
        self._seconds = seconds
        self._idle = [Side(equip) for _ in range(self._size)]
        self._busy: set[Side] = set()
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
        for side in (*self._idle, *self._busy) if left else ():
            side.stay_on(left)

    async def equip(self) -> None:
        """Wait until the first process has loaded the processor; raises as ``Side.equip``."""
        await asyncio.shield(await self._begin(Side.equip))

    async def prepare(self, order: Prepare) -> Prepared:
        """An item prepared, as ``Side.prepare``. Whoever is cancelled leaves the process to end its work alone."""
        work = await self._begin(lambda side: side.prepare(order, self._seconds))
        return await asyncio.shield(work)

    async def cut(self, order: Cut) -> AsyncGenerator[Window, None]:
        """The pieces of a sound as they come, as ``Side.cut``. Whoever leaves early leaves the process to its work."""
        arrived: asyncio.Queue[Window | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def take(window: Window) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, window)

        work = await self._begin(lambda side: side.cut(order, take, self._seconds))
        work.add_done_callback(lambda _: arrived.put_nowait(None))
        while (window := await arrived.get()) is not None:
            yield window
        await work

    def close(self) -> None:
        """Kill all processes; what is under way fails."""
        for side in self._idle:
            side.end()
        for side in self._busy:
            side.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _begin(self, act: Callable[[Side], Made]) -> asyncio.Task[Made]:
        """Have a side process act as soon as one is free."""
        await self._slots.acquire()
        work = asyncio.create_task(self._run(act))
        self._work.add(work)
        work.add_done_callback(self._finish)
        return work

    async def _run(self, act: Callable[[Side], Made]) -> Made:
        side = self._idle.pop()
        self._busy.add(side)
        try:
            if not side.running:
                side.start()
            return await asyncio.get_running_loop().run_in_executor(self._threads, act, side)
        finally:
            self._busy.discard(side)
            self._idle.append(side)

    def _finish(self, work: asyncio.Task[Made]) -> None:
        self._slots.release()
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # whoever waited has heard it, or has gone


def _default_size() -> int:
    """A quarter of the cores: at least two, so that one long clip does not keep pictures waiting, and at most four."""
    return max(2, min(4, len(os.sched_getaffinity(0)) // 4))
