"""Sockets in an event loop: one that carries messages, and two that hand on what comes through them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from lsv.engine.replicas.nodes.messages import LONGEST
from lsv_base.errors import from_record
from lsv_base.processes.wire import Failed, FrameReader, Received, Sent, encode_frame

_READ = 1 << 18
_LAST_SECONDS = 2.0
"""What the other end gets to take in a last message."""

Said = TypeVar("Said")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Line(Generic[Sent, Received]):
    """Messages over a socket. ``receives`` is the union of what the other end sends, whose last may be ``Failed``."""

    def __init__(self, stream: Stream, receives: Any) -> None:
        self._reader, self._writer = stream
        self._frames: FrameReader[Received | Failed] = FrameReader(receives | Failed, LONGEST)
        self._arrived: list[Received | Failed] = []

    def send(self, message: Sent) -> None:
        """Returns at once; whether the other end is still there, ``receive`` finds out."""
        self._writer.write(encode_frame(message))

    async def receive(self) -> Received:
        """The next message. Raises the error that the other end reports as its last.

        Raises ``EOFError`` when it is gone, ``OSError``, and ``ValueError`` for what is not a message.
        """
        while not self._arrived:
            data = await self._reader.read(_READ)
            if not data:
                raise EOFError
            self._arrived += self._frames.feed(data)
        message = self._arrived.pop(0)
        if isinstance(message, Failed):
            raise from_record(message.error)
        return message

    async def finish(self, last: Sent | Failed) -> None:
        """Send a last message, and close once the other end has, or after a moment; nobody else may receive meanwhile.

        Closing at once would take the message back where something that the other end has said is still unread.
        """
        with suppress(OSError, TimeoutError):
            self._writer.write(encode_frame(last))
            self._writer.write_eof()
            await asyncio.wait_for(self._read_on(), _LAST_SECONDS)
        self.close()

    async def _read_on(self) -> None:
        while await self._reader.read(_READ):
            pass

    def close(self) -> None:
        self._writer.transport.abort()


def in_loop(call: Callable[[Said], object]) -> Callable[[Said], None]:
    """``call`` for any thread: it is made soon in the event loop that runs now, unless that has ended."""
    loop = asyncio.get_running_loop()

    def call_soon(said: Said) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call, said)

    return call_soon


async def stream_over(end: socket.socket) -> Stream:
    """A connected socket as a pair of streams, which own it. Raises ``OSError`` for one that is broken."""
    end.setblocking(False)
    try:
        return await asyncio.open_connection(sock=end)
    except BaseException:
        end.close()
        raise


async def splice(one: Stream, other: Stream) -> None:
    """Hand on what comes from either end to the other, until one of them ends; what it has said last gets there."""
    pumps = [asyncio.create_task(_pump(one[0], other[1])), asyncio.create_task(_pump(other[0], one[1]))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(pumps)
        for _, writer in (one, other):
            writer.close()


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all, and wait for them."""
    running = tuple(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_READ):
            writer.write(data)
            await writer.drain()
