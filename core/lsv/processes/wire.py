"""Frames on a socket: a message as msgpack behind its length as u32-LE; and channels between parent and child."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from lsv.errors import ErrorRecord

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
    """Assembles messages of one type (a union of tagged records) from bytes as they arrive."""

    def __init__(self, kind: object) -> None:
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
            if length > LONGEST:
                raise ValueError(f"a frame of {length} bytes is over the limit of {LONGEST}")
            body = start + _LENGTH.size
            if len(self._buffer) < body + length:
                break
            with memoryview(self._buffer) as whole, whole[body : body + length] as found:
                message = self._decoder.decode(found)
            yield message
            start = body + length
        del self._buffer[:start]


class Channel(Generic[Sent, Received]):
    """One end of a socket pair. ``receives`` is the union of what the other end sends."""

    def __init__(self, end: socket.socket, receives: object) -> None:
        self.end = end
        self._reader: FrameReader[Received] = FrameReader(receives)
        self._arrived: deque[Received] = deque()

    def fileno(self) -> int:
        return self.end.fileno()

    @property
    def pending(self) -> bool:
        """Whether a message has arrived that nobody has received yet; the socket does not show it any more."""
        return bool(self._arrived)

    @property
    def ready(self) -> bool:
        """Whether ``receive`` would return at once."""
        return self.pending or bool(select.select([self.end], [], [], 0)[0])

    def send(self, message: Sent, seconds: float | None = None) -> None:
        """Raises ``OSError`` when the other end is gone, ``TimeoutError`` when it does not take it in ``seconds``."""
        frame = encode_frame(message)
        self._limit(seconds)
        self.end.sendall(frame)

    def receive(self, seconds: float | None = None) -> Received:
        """The next message. Raises ``EOFError`` when the other end is gone, ``TimeoutError`` after ``seconds``.

        Raises ``ValueError`` for a frame that is not a message.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._arrived:
            self._arrived.extend(self._reader.feed(self._read(deadline)))
        return self._arrived.popleft()

    def close(self) -> None:
        self.end.close()

    def _read(self, deadline: float | None) -> bytes:
        try:
            self._limit(None if deadline is None else max(0.001, deadline - time.monotonic()))
            data = self.end.recv(_READ)
        except TimeoutError:
            raise
        except OSError as cause:
            raise EOFError(_GONE) from cause
        if not data:
            raise EOFError(_GONE)
        return data

    def _limit(self, seconds: float | None) -> None:
        """How long the socket may block; a system call only where that changes."""
        if self.end.gettimeout() != seconds:
            self.end.settimeout(seconds)
