"""Frames on a socket: a message as msgpack behind its length as u32-LE."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 30

Message = TypeVar("Message")
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: object) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[Message]):
    """Gathers bytes as they come into messages of one type (a union of tagged records)."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Messages that are complete with ``data``. Raises ``ValueError`` for what is no message of the type."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > _LONGEST:
                raise ValueError(f"a frame of {length} bytes is over the limit of {_LONGEST}")
            body = start + _LENGTH.size
            if len(self._buffer) < body + length:
                break
            yield self._decoder.decode(bytes(memoryview(self._buffer)[body : body + length]))
            start = body + length
        del self._buffer[:start]
