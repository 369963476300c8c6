"""Standard output and error that never block their process. If the reader stops, lines are lost and nothing else.

A pipe holds 64 KiB, and a terminal can be paused. Either would block a writer, and with it an event loop or an engine.
Here output that the reader does not take is queued, up to ``QUEUE_BYTES``. Further output is dropped.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

QUEUE_BYTES = 1 << 20
"""Bytes that a stream queues for a slow reader."""
LAST_SECONDS = 1.0
"""How long an exiting process waits for the reader."""

Send = Callable[[bytes], int]
"""Writes some of the bytes and returns how many. Raises ``BlockingIOError`` instead of waiting."""


class Outlet(io.RawIOBase):
    """A descriptor as a stream whose writers never wait. Threads may share it."""

    def __init__(self, descriptor: int, name: str, *, limit: int = QUEUE_BYTES) -> None:
        self.dropped = 0
        """How many writes were dropped."""
        self._descriptor, self._name, self._limit = descriptor, name, limit
        self._send = _open_without_waiting(descriptor)
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._unreported = 0
        self._changed = threading.Condition(threading.RLock())  # a finaliser may write during a write of its thread
        self._drainer: threading.Thread | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Write, queue or drop ``data``; returns its length in each case."""
        piece = bytes(data)
        with self._changed:
            rest = piece if self._queue or self._send is None else _send_now(self._send, piece)
            if rest:
                self._put_aside(rest, begun=len(rest) < len(piece))
        return len(piece)

    def drain(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the queue to empty; returns whether it did."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._queue:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def _put_aside(self, piece: bytes, *, begun: bool) -> None:
        """Queue a piece; drop it if the queue is full, unless its beginning has been written."""
        if self._queued + len(piece) > self._limit and not begun:
            self.dropped += 1
            self._unreported += 1
            return
        self._queue.append(piece)
        self._queued += len(piece)
        if self._drainer is None:
            self._drainer = threading.Thread(target=self._drain, name=f"{self._name}-outlet", daemon=True)
            try:
                self._drainer.start()
            except RuntimeError:  # no thread can be started, or the interpreter is exiting: a later write tries again
                self._drainer = None

    def _drain(self) -> None:
        """Write the queue as the reader takes it. Returns once the queue is empty."""
        waits = self._send is not None
        while True:
            if waits:
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            else:
                self._write_first()
            with self._changed:
                if waits and self._queue:
                    self._replace_first(_send_now(self._send, self._queue[0]) if self._send else b"")
                if not self._queue and self._unreported:
                    self._report()
                if not self._queue:
                    self._drainer = None
                    self._changed.notify_all()
                    return

    def _write_first(self) -> None:
        """Write the first piece in full, blocking this thread."""
        with self._changed:
            piece = self._queue[0]
        with suppress(OSError):
            while piece:
                piece = piece[os.write(self._descriptor, piece) :]
        with self._changed:
            self._replace_first(b"")

    def _replace_first(self, rest: bytes) -> None:
        first = self._queue.popleft()
        self._queued -= len(first) - len(rest)
        if rest:
            self._queue.appendleft(rest)

    def _report(self) -> None:
        lost, self._unreported = self._unreported, 0
        note = f"WARNING {lost} lines were lost here: {self._name} of process {os.getpid()} was not read\n".encode()
        self._queue.append(note)
        self._queued += len(note)


def unblock_output() -> None:
    """Make standard output and error of this process non-blocking, also for log handlers that use them already."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if not _writes_to(stream, descriptor):
            continue
        stream.flush()
        outlet = Outlet(descriptor, f"standard {'error' if name == 'stderr' else 'output'}")
        fresh = io.TextIOWrapper(
            io.BufferedWriter(outlet), encoding=stream.encoding, errors=stream.errors, line_buffering=True
        )
        setattr(sys, name, fresh)
        _OUTLETS.append(outlet)
        atexit.register(outlet.drain, LAST_SECONDS)
        _move_handlers(stream, fresh)


def count_dropped() -> int:
    """How many writes this process has dropped."""
    return sum(outlet.dropped for outlet in _OUTLETS)


_OUTLETS: list[Outlet] = []


def _writes_to(stream: Any, descriptor: int) -> bool:
    """Whether a stream is Python's own for a descriptor. Tests and notebooks replace these streams."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(getattr(stream.buffer, "raw", None), Outlet):
        return False
    try:
        os.fstat(descriptor)
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def _move_handlers(old: Any, new: Any) -> None:
    """Move log handlers from the stream ``old`` to ``new``."""
    loggers = [logging.getLogger(), *(one for one in logging.Logger.manager.loggerDict.values())]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)


def _send_now(send: Send, piece: bytes) -> bytes:
    """Send as much as possible without waiting; returns the rest, which is empty if the reader is gone."""
    try:
        while piece:
            piece = piece[send(piece) :]
    except BlockingIOError:
        return piece
    except OSError:
        return b""
    return b""


def _open_without_waiting(descriptor: int) -> Send | None:
    """A function that writes to a descriptor without waiting; None if only a blocking thread can write.

    Pipes and terminals are reopened, because O_NONBLOCK on the descriptor itself would affect all processes that share
    it. Child processes and native code of this process then write without waiting, too.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        return partial(_send_to_socket, descriptor)
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        try:
            fresh = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:  # not Linux, another user's, or the reader is gone
            return None
        os.dup2(fresh, descriptor, inheritable=True)
        os.close(fresh)
    return partial(os.write, descriptor)


def _send_to_socket(descriptor: int, piece: bytes) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as end:
        return end.send(piece, socket.MSG_DONTWAIT)
