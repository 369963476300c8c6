"""Messages between an executor and its worker processes: length-prefixed msgspec records on a socket pair."""

from __future__ import annotations

import socket
import struct
from typing import Generic, TypeVar

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.errors import ErrorRecord
from lsv.scheduler.plan import StepPlan, StepResult

_LENGTH = struct.Struct("<Q")

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class Start(msgspec.Struct, frozen=True, tag=True):
    """Become rank ``rank``; the ranks meet at ``address``."""

    config: EngineConfig
    rank: int
    address: str


class Run(msgspec.Struct, frozen=True, tag=True):
    plan: StepPlan


class Loading(msgspec.Struct, frozen=True, tag=True):
    stage: str
    done: int
    total: int


class Started(msgspec.Struct, frozen=True, tag=True):
    fit: Fit


class Ran(msgspec.Struct, frozen=True, tag=True):
    result: StepResult


class Broke(msgspec.Struct, frozen=True, tag=True):
    """The worker can't go on and ends."""

    error: ErrorRecord


Order = Start | Run
Report = Loading | Started | Ran | Broke


class Channel(Generic[Sent, Received]):
    """One end of a socket pair, in blocking mode. ``receives`` is the union of what the other end sends."""

    def __init__(self, end: socket.socket, receives: object) -> None:
        self.end = end
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(receives)

    def fileno(self) -> int:
        return self.end.fileno()

    def send(self, message: Sent) -> None:
        """Raises ``OSError`` when the other end is gone."""
        frame = self._encoder.encode(message)
        self.end.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> Received:
        """The next message; raises ``EOFError`` when the other end is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._decoder.decode(self._read(length))

    def close(self) -> None:
        self.end.close()

    def _read(self, size: int) -> bytes:
        frame = bytearray()
        while len(frame) < size:
            part = self.end.recv(min(size - len(frame), 1 << 20))
            if not part:
                raise EOFError("the other end of the channel is gone")
            frame += part
        return bytes(frame)
