"""What engines say to each other about contents, once they have shown that they have the same secret.

    consumer    4 bytes     how long the question is
                …           ``Ask``, in msgpack
    producer    for each content, part by part, in the order of the question:
                8 bytes     how long the file is
                …           the file as it is, see ``form``

A length of 0 ends it: that content is not there. ``OTHER`` ends it where contents are of another form altogether. All
numbers are little endian. Nothing is encrypted.
"""

from __future__ import annotations

import socket
import time

import msgspec

from lsv_kv_offload import form

OTHER = (1 << 64) - 1
_MOST_ASKED = 16 << 20
MOST_SENT = form.SIZE + (1 << 30)
"""Bytes of a file, at most."""


class Ask(msgspec.Struct, frozen=True):
    """What a consumer wants."""

    identity: str
    """Its ``Site.identity``."""
    ranks: int
    keys: tuple[bytes, ...]


class Late(Exception):
    """The time is up."""


class Line:
    """One end of a connection, with a time by which all must have been said."""

    def __init__(self, end: socket.socket, until: float) -> None:
        """``until`` is a time of ``time.monotonic``."""
        self._end, self.until = end, until

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

    def read_size(self) -> int:
        """Raises ``ValueError`` for a size that no file has."""
        size = int.from_bytes(self.read(bytearray(8)), "little")
        if size not in (0, OTHER) and not form.SIZE < size <= MOST_SENT:
            raise ValueError(f"a file of {size} bytes")
        return size

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
        left = self.until - time.monotonic()
        if left <= 0:
            raise Late
        self._end.settimeout(left)
