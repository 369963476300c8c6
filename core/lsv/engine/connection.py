"""One client's connection on the engine's side: never blocks, and buffers little for a slow reader."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

from lsv.engine.mailbox import Mailbox
from lsv.engine.messages import ClientMessage, EngineMessage, Stats, Tokens, Update
from lsv.processes.wire import FrameReader, encode_frame

_READ = 1 << 18


class ConnectionLost(Exception):
    """The client is gone, or sends something that is not a message."""


class Connection:
    """``end`` becomes non-blocking. Updates are merged while earlier bytes wait to be read."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._reader: FrameReader[ClientMessage] = FrameReader(ClientMessage)
        self._outgoing = bytearray()
        self._mailbox = Mailbox()
        self._stats: Stats | None = None

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def is_behind(self) -> bool:
        """Whether bytes wait for the client to read."""
        return bool(self._outgoing)

    @property
    def is_receiving(self) -> bool:
        """Whether a message has arrived in part."""
        return self._reader.is_inside

    def receive(self) -> Sequence[ClientMessage]:
        """The messages that have arrived. Raises ``ConnectionLost``."""
        try:
            data = self._end.recv(_READ)
        except BlockingIOError:
            return ()
        except OSError as cause:
            raise ConnectionLost(str(cause)) from cause
        if not data:
            raise ConnectionLost("closed by the client")
        try:
            return list(self._reader.feed(data))
        except ValueError as cause:
            raise ConnectionLost(f"not a message: {cause}") from cause

    def send(self, message: EngineMessage) -> None:
        """Send a single message, as soon as the client reads. Raises ``ConnectionLost``."""
        self._outgoing += encode_frame(message)
        self.flush()

    def deliver(self, updates: Iterable[Update], stats: Stats) -> None:
        """Send a step's updates, merged with those that wait. Raises ``ConnectionLost``."""
        self._mailbox.put(updates)
        self._stats = stats
        self.flush()

    def discard(self, ids: Iterable[int]) -> None:
        """Drop what waits for these requests: the client does not want it any more."""
        self._mailbox.discard(ids)

    def discard_sequence(self, id: int, index: int) -> None:
        """Drop what waits for one sequence."""
        self._mailbox.discard_sequence(id, index)

    def flush(self) -> None:
        """Send what the socket takes, down to the updates that waited for earlier bytes. Raises ``ConnectionLost``."""
        try:
            while self._outgoing or self._stats is not None:
                if not self._outgoing and self._stats is not None:
                    self._outgoing += encode_frame(Tokens(self._mailbox.take(), self._stats))
                    self._stats = None
                del self._outgoing[: self._end.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError as cause:
            raise ConnectionLost(str(cause)) from cause

    def close(self) -> None:
        self._end.close()
