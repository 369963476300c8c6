"""Messages between an executor and its worker processes: length-prefixed msgspec records on a socket pair."""

from __future__ import annotations

import select
import socket
from collections import deque
from typing import Generic, TypeVar

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.errors import ErrorRecord
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.wire import FrameReader, encode_frame

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
