"""Frames on a socket: a message as msgpack behind its length as u32-LE; and channels between parent and child."""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from lsv_base.errors import ErrorRecord

_LENGTH = struct.Struct("<I")
LONGEST = 1 << 30
"""Bytes of the longest frame."""
_READ = 1 << 20
_GONE = "the other end of the channel is gone"

Message = TypeVar("Message")
Sent = TypeVar("Sent")
Received = TypeVar("Received")
_encoder = msgspec.msgpack.Encoder()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The last message of a process that can't go on."""

    error: ErrorRecord


def encode_frame(message: object) -> bytearray:
    """The frame of a message, in one piece: media make it long. Raises ``ValueError`` for one over ``LONGEST``."""
    frame = bytearray(_LENGTH.size)
    _encoder.encode_into(message, frame, _LENGTH.size)
    length = len(frame) - _LENGTH.size
    if length > LONGEST:
        raise ValueError(
            f"a message {type(message).__name__} of {length} bytes is over the limit of {LONGEST} for a frame"
        )
    _LENGTH.pack_into(frame, 0, length)
    return frame


class FrameReader(Generic[Message]):
    """Assembles messages of one type (a union of tagged records) from bytes as they arrive, each of ``longest``."""

    def __init__(self, kind: object, longest: int = LONGEST) -> None:
        self._longest = longest
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether a frame has arrived in part."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Messages that are complete with ``data``. Raises ``ValueError`` for anything but a message."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self._longest:
                raise ValueError(f"a frame of {length} bytes is over the limit of {self._longest}")
            body = start + _LENGTH.size
            if len(self._buffer) < body + length:
                break
            with memoryview(self._buffer) as whole, whole[body : body + length] as found:
                message = self._decoder.decode(found)
            yield message
            start = body + length
        del self._buffer[:start]


class Channel(Generic[Sent, Received]):
    """One end of a socket pair, which becomes non-blocking. ``receives`` is the union of what the other end sends.

    Two ends never wait for each other: who can't go on sending takes in what the other end has sent.
    """

    def __init__(self, end: socket.socket, receives: object) -> None:
        end.setblocking(False)
        self.end = end
        self._reader: FrameReader[Received] = FrameReader(receives)
        self._arrived: deque[Received] = deque()
        self._ended = False

    def fileno(self) -> int:
        return self.end.fileno()

    @property
    def pending(self) -> bool:
        """Whether a message has arrived that nobody has received yet; the socket does not show it any more."""
        return bool(self._arrived)

    @property
    def ready(self) -> bool:
        """Whether ``receive`` would return at once."""
        return self.pending or self._ended or self._poll(select.POLLIN, 0.0)

    def send(self, message: Sent, seconds: float | None = None) -> None:
        """Raises ``OSError`` when the other end is gone, ``TimeoutError`` when it does not take it in ``seconds``.

        After a ``TimeoutError`` the channel is of no use: a part of the message may be on its way.
        """
        deadline = _after(seconds)
        with memoryview(encode_frame(message)) as frame:
            sent = 0
            while sent < len(frame):
                try:
                    sent += self.end.send(frame[sent:])
                except BlockingIOError:
                    self._make_room(deadline)

    def receive(self, seconds: float | None = None) -> Received:
        """The next message. Raises ``EOFError`` when the other end is gone, ``TimeoutError`` after ``seconds``.

        Raises ``ValueError`` for a frame that is not a message. A message that has arrived is not late.
        """
        deadline = _after(seconds)
        while not self._arrived:
            if self._ended:
                raise EOFError(_GONE)
            self._take_in()
            if not self._arrived and not self._ended:
                self._wait(select.POLLIN, deadline)
        return self._arrived.popleft()

    def end_sending(self) -> None:
        """Let the other end see the end of what it is sent, and go on receiving. Another thread may call this."""
        with suppress(OSError):  # it is gone already
            self.end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.end.close()

    def _make_room(self, deadline: float | None) -> None:
        """Wait until the other end has read on, taking in what it sends meanwhile."""
        self._wait(select.POLLOUT | (0 if self._ended else select.POLLIN), deadline)
        if not self._ended:
            self._take_in()

    def _take_in(self) -> None:
        """Read what is there."""
        try:
            data = self.end.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._ended = not data
        self._arrived.extend(self._reader.feed(data))

    def _wait(self, events: int, deadline: float | None) -> None:
        """Wait for the socket; raises ``TimeoutError`` at ``deadline``."""
        if not self._poll(events, None if deadline is None else max(0.0, deadline - time.monotonic())):
            raise TimeoutError

    def _poll(self, events: int, seconds: float | None) -> bool:
        poll = select.poll()  # select knows no descriptor above 1023
        poll.register(self.end, events)
        return bool(poll.poll(None if seconds is None else math.ceil(1000 * seconds)))


def _after(seconds: float | None) -> float | None:
    """The time of the monotonic clock in ``seconds``."""
    return None if seconds is None else time.monotonic() + seconds
