"""The protocol by which engines fetch contents, after the handshake.

    consumer    4 bytes     how long the question is
                …           ``Ask``, in msgpack
    producer    for each content, part by part, in the order of the question:
                8 bytes     how long the file is
                …           the file as it is, see ``form``

A length of 0 ends it: that content is not there. ``OTHER`` ends it where contents are of another form altogether.
``BUSY`` says that the next one is still being computed. On one machine a length comes with a descriptor of the file,
and nothing follows it. All numbers are little endian. Nothing is encrypted.

To a consumer that watches, the producer says for as long as both are there:
    producer    8 bytes     how long the notice is, or ``BUSY`` as a sign of life
                …           names of contents that are revoked, in msgpack
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from lsv_kv_offload import form

OTHER = (1 << 64) - 1
BUSY = OTHER - 1
_NO_FILES = (0, OTHER, BUSY)
_MOST_ASKED = 16 << 20
MOST_SENT = form.SIZE + (1 << 30)
"""Bytes of a file, at most."""


class Ask(msgspec.Struct, frozen=True):
    """What a consumer wants."""

    identity: str
    """Its ``Site.identity``."""
    ranks: int
    keys: tuple[bytes, ...]
    seconds: float
    """How long it waits for all of them, or where they are pending for a word."""
    pending: bool
    """Whether they are still being computed, or about to be."""
    watches: bool = False
    """Whether the consumer only wants notices of revoked contents."""


class Late(Exception):
    """The time is up."""


class Line:
    """One end of a connection, with a time by which all must have been said."""

    def __init__(self, end: socket.socket, until: float, silence: float = math.inf) -> None:
        """``until`` is a time of ``time.monotonic``; the other end may be silent for ``silence`` seconds at a time."""
        self._end, self.until, self.silence = end, until, silence
        self.near = end.family == socket.AF_UNIX
        """Whether both ends are on one machine."""
        if self.near:  # a user may have only so many descriptors on their way, over all connections
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    def send_ask(self, ask: Ask) -> None:
        """Raises ``OSError`` and ``Late``, as all others do."""
        packed = msgspec.msgpack.encode(ask)
        self.send(len(packed).to_bytes(4, "little") + packed)

    def read_ask(self) -> Ask:
        """Raises ``ValueError`` for what is no question."""
        size = int.from_bytes(self.read(bytearray(4)), "little")
        if size > _MOST_ASKED:
            raise ValueError("a question that is too long")
        packed = self.read(bytearray(size))
        try:
            return msgspec.msgpack.decode(packed, type=Ask)
        except msgspec.MsgspecError as fault:
            raise ValueError(str(fault)) from None

    def send_size(self, size: int) -> None:
        self.send(size.to_bytes(8, "little"))

    def send_notice(self, keys: Sequence[bytes]) -> None:
        packed = msgspec.msgpack.encode(keys)
        self.send(len(packed).to_bytes(8, "little") + packed)

    def read_notice(self) -> list[bytes]:
        """Read revoked contents. Raises ``ValueError`` for any other message."""
        while (size := int.from_bytes(self.read(bytearray(8)), "little")) == BUSY:
            pass
        if not 0 < size <= _MOST_ASKED:
            raise ValueError(f"a notice of {size} bytes")
        try:
            return msgspec.msgpack.decode(self.read(bytearray(size)), type=list[bytes])
        except msgspec.MsgspecError as fault:
            raise ValueError(str(fault)) from None

    def send_file(self, file: BinaryIO) -> None:
        """A whole file, or where both ends are near the file itself."""
        size = os.fstat(file.fileno()).st_size
        if self.near:
            self._wait()
            socket.send_fds(self._end, [size.to_bytes(8, "little")], [file.fileno()])
        else:
            self.send_size(size)
            self._end.sendfile(file, count=size)

    def read_size(self) -> int:
        """Raises ``ValueError`` for a size that no file has."""
        while (size := _check_size(self.read(bytearray(8)))) == BUSY:
            pass
        return size

    def read_descriptor(self) -> tuple[int, int | None]:
        """As ``read_size``, between near ends: with a descriptor of the file, which is to be closed; None of none."""
        while (found := self._read_descriptor())[0] == BUSY:
            pass
        return found

    def _read_descriptor(self) -> tuple[int, int | None]:
        self._wait()
        data, descriptors, _, _ = socket.recv_fds(self._end, 8, 1, socket.MSG_CMSG_CLOEXEC)
        descriptor = descriptors[0] if descriptors else None
        try:
            if len(data) < 8:
                raise ConnectionResetError("the connection was closed")
            size = _check_size(data)
            if (descriptor is None) != (size in _NO_FILES):
                raise ValueError("a length without its file")
        except (OSError, ValueError):
            if descriptor is not None:
                os.close(descriptor)
            raise
        return size, descriptor

    def send(self, data: bytes) -> None:
        self._wait()
        self._end.sendall(data)

    def read(self, into: bytearray) -> bytearray:
        """Fill ``into``."""
        rest = memoryview(into)
        while rest:
            self._wait()
            count = self._end.recv_into(rest)
            if not count:
                raise ConnectionResetError("the connection was closed")
            rest = rest[count:]
        return into

    def _wait(self) -> None:
        left = min(self.until - time.monotonic(), self.silence)
        if left <= 0:
            raise Late
        self._end.settimeout(left)


def _check_size(said: bytes | bytearray) -> int:
    size = int.from_bytes(said, "little")
    if size not in _NO_FILES and not form.SIZE < size <= MOST_SENT:
        raise ValueError(f"a file of {size} bytes")
    return size
