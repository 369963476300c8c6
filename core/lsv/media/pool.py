"""The side processes of a server: few, each for one item at a time, replaced when one hangs or falls."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from lsv.errors import BadRequest, LsvError, PluginError, RequestFailed, from_record
from lsv.media.orders import Answer, Equip, Prepare, Prepared, Refused
from lsv.wire import FrameReader, encode_frame

_EQUIP_SECONDS = 120.0
"""How long imports and the loading of the processor may take."""

_READ = 1 << 20


class Side:
    """One side process. ``start`` and ``end`` are quick, ``prepare`` blocks and belongs into a thread.

    It dies with the thread that called ``start``.
    """

    def __init__(self, equip: Equip) -> None:
        self._equip = equip
        self._child: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._equipped = False

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        self.end()
        self._end, theirs = socket.socketpair()
        self._equipped = False
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "lsv.media.side", str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        with suppress(OSError):  # it died at once; whoever wants something prepared finds out
            self._end.sendall(encode_frame(self._equip))

    def prepare(self, order: Prepare, seconds: float) -> Prepared:
        """An item, prepared within ``seconds``, else the process is killed. Raises what the process refuses it with."""
        try:
            if not self._equipped:
                self._await_equipped()
            answer = self._ask(order, seconds)
            assert isinstance(answer, Prepared), "an item is prepared or refused"
            return answer
        except TimeoutError:
            self.end()
            if not self._equipped:
                raise PluginError(f"the model's processor was not loaded within {_EQUIP_SECONDS:g} s") from None
            raise BadRequest(
                f"decoding and preparing the {order.modality} took more than {seconds:g} s (--media-timeout)"
            ) from None
        except (EOFError, OSError, ValueError):
            self.end()
            if not self._equipped:
                raise RequestFailed("the process that prepares media ended before it was ready") from None
            raise BadRequest(f"the {order.modality} can't be decoded: it broke the process that tried") from None

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

    def _await_equipped(self) -> None:
        """Wait until the processor is loaded; a process that can't load it ends."""
        try:
            self._ask(None, _EQUIP_SECONDS)
        except LsvError:
            self.end()
            raise
        self._equipped = True

    def _ask(self, order: Prepare | None, seconds: float) -> Answer:
        """Send an order and wait for the answer, without one only wait. Raises what was refused, ``TimeoutError`` …"""
        end = self._end
        if end is None:
            raise EOFError
        deadline = time.monotonic() + seconds
        if order is not None:
            end.settimeout(seconds)
            end.sendall(encode_frame(order))
        reader: FrameReader[Answer] = FrameReader(Answer)
        while True:
            end.settimeout(max(0.001, deadline - time.monotonic()))
            data = end.recv(_READ)
            if not data:
                raise EOFError
            for answer in reader.feed(data):
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
        self._work: set[asyncio.Task[Prepared]] = set()

    def warm(self) -> None:
        """Start the first process, so that the first item does not wait for its imports."""
        if not self._idle[-1].running:
            self._idle[-1].start()

    async def prepare(self, order: Prepare) -> Prepared:
        """An item prepared, as ``Side.prepare``. Whoever is cancelled leaves the process to end its work alone."""
        await self._slots.acquire()
        work = asyncio.create_task(self._run(order))
        self._work.add(work)
        work.add_done_callback(self._finish)
        return await asyncio.shield(work)

    def close(self) -> None:
        """Kill all processes; what is under way fails."""
        for side in self._idle:
            side.end()
        for side in self._busy:
            side.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, order: Prepare) -> Prepared:
        side = self._idle.pop()
        self._busy.add(side)
        try:
            if not side.running:
                side.start()
            return await asyncio.get_running_loop().run_in_executor(self._threads, side.prepare, order, self._seconds)
        finally:
            self._busy.discard(side)
            self._idle.append(side)

    def _finish(self, work: asyncio.Task[Prepared]) -> None:
        self._slots.release()
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # whoever waited has heard it, or has gone


def _default_size() -> int:
    """A quarter of the cores: at least two, so that one long clip does not keep pictures waiting, and at most four."""
    return max(2, min(4, len(os.sched_getaffinity(0)) // 4))
