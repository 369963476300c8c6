"""Frames on a socket: a message as msgpack behind its length as u32-LE; and channels to side and worker processes."""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

_LENGTH = struct.Struct("<I")
LONGEST = 1 << 30
"""Bytes of the longest frame."""

Message = TypeVar("Message")
Sent = TypeVar("Sent")
Received = TypeVar("Received")
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: object) -> bytearray:
    """The frame of a message. Written in one piece: pictures make it long.

    Raises ``ValueError`` for one that is longer than a reader takes.
    """
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
    """Gathers bytes as they come into messages of one type (a union of tagged records)."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether a frame has come in part."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Messages that are complete with ``data``. Raises ``ValueError`` for what is no message of the type."""
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
    """One end of a socket pair, in blocking mode. ``receives`` is the union of what the other end sends."""

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

    def send(self, message: Sent) -> None:
        """Raises ``OSError`` when the other end is gone."""
        self.end.sendall(encode_frame(message))

    def receive(self) -> Received:
        """The next message; raises ``EOFError`` when the other end is gone."""
        while not self._arrived:
            data = self.end.recv(1 << 20)
            if not data:
                raise EOFError("the other end of the channel is gone")
            self._arrived.extend(self._reader.feed(data))
        return self._arrived.popleft()

    def close(self) -> None:
        self.end.close()
