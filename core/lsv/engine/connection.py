"""Connections of clients on the engine's side: they never block, and buffer little for a slow reader."""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from lsv.engine.mailbox import Mailbox
from lsv.engine.messages import ClientMessage, EngineMessage, Stats, Tokens, Update
from lsv_base.processes.wire import FrameReader, encode_frame

log = logging.getLogger(__name__)

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


class Connections:
    """The clients of one engine, by numbers of their own. A connection that is lost is closed."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        *,
        on_message: Callable[[int, Connection, ClientMessage], None],
        on_lost: Callable[[int], None],
    ) -> None:
        """``selector`` is asked by the caller, who calls the data of each ready key with its file object."""
        self._listener, self._selector = listener, selector
        self._on_message, self._on_lost = on_message, on_lost
        self._open: dict[int, Connection] = {}
        self._accepted = 0
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def are_behind(self) -> bool:
        """Whether bytes wait for any client to read."""
        return any(connection.is_behind for connection in self._open.values())

    @property
    def are_receiving(self) -> bool:
        """Whether a message of any client has arrived in part."""
        return any(connection.is_receiving for connection in self._open.values())

    def stop_listening(self) -> None:
        self._selector.unregister(self._listener)

    def send(self, number: int, message: EngineMessage) -> None:
        """Send a message to a client, unless it is gone."""
        self._reach(number, partial(Connection.send, message=message))

    def broadcast(self, message: EngineMessage, *, if_not_behind: bool = False) -> None:
        """Send a message to all clients, or to those that have read everything."""
        for number, connection in tuple(self._open.items()):
            if not (if_not_behind and connection.is_behind):
                self.send(number, message)

    def deliver(self, updates: Mapping[int, Iterable[Update]], stats: Stats) -> None:
        """Send each client its updates of a step, and all of them the figures."""
        for number in tuple(self._open):
            self._reach(number, partial(Connection.deliver, updates=updates.get(number, ()), stats=stats))

    def _accept(self, _: object) -> None:
        try:
            end, _address = self._listener.accept()
        except OSError:
            return  # gone again
        self._accepted += 1
        number, connection = self._accepted, Connection(end)
        self._open[number] = connection
        read = partial(self._read, number)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._reach(number, read))

    def _read(self, number: int, connection: Connection) -> None:
        connection.flush()
        for message in connection.receive():
            self._on_message(number, connection, message)
            if number not in self._open:
                return  # lost while the answer was sent

    def _reach(self, number: int, act: Callable[[Connection], None]) -> None:
        """Act on a connection unless it is gone. It may end through the loss of another one, or in ``act`` itself."""
        if (connection := self._open.get(number)) is None:
            return
        try:
            act(connection)
        except ConnectionLost as lost:
            self._lose(number, lost)
        else:
            if number in self._open:
                self._watch_writes(connection)

    def _watch_writes(self, connection: Connection) -> None:
        """Wait for a reader who is behind to read on."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.is_behind else 0)
        key = self._selector.get_key(connection)
        if key.events != wanted:
            self._selector.modify(connection, wanted, key.data)

    def _lose(self, number: int, lost: ConnectionLost) -> None:
        connection = self._open.pop(number)
        self._selector.unregister(connection)
        connection.close()
        log.debug("connection %d ended: %s", number, lost)
        self._on_lost(number)
