"""A listener that authenticates connections by the key. Silent connections do not delay others."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from lsv.processes.nodes.handshake import Challenge
from lsv.processes.nodes.reaching import prepare

_LOOK_SECONDS = 0.2
_STRANGER_SECONDS = 2.0
"""Seconds that a connection has to prove that it has the key."""
_MOST = 256
"""Limit on unauthenticated connections. Beyond it, the oldest one from the busiest address is closed."""
_BACKLOG = 512
_AT_ONCE = 16
"""Connections that are accepted before waiting messages are read again."""
_MOST_REFUSED = 1024
"""Limit on rejected connections that wait to be reported."""


class Guest(NamedTuple):
    """A connection that has finished the handshake, with the right key or a wrong one."""

    end: socket.socket
    address: str
    purpose: int | None
    """The purpose of the connection; None if its key is wrong, in which case the connection is closed."""


def listen(address: str, port: int) -> socket.socket:
    """Open a listener for a ``Door``; port 0 means any free port. Raises ``OSError``."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(found[4][:2], family=found[0], backlog=_BACKLOG)


class Stranger:
    """A connection that has not proved yet that it has the key."""

    def __init__(self, end: socket.socket, address: str, key: bytes) -> None:
        self.end, self.address = end, address
        self.until = time.monotonic() + _STRANGER_SECONDS
        self._challenge = Challenge(key)
        self._said = b""
        end.setblocking(False)
        if end.family != socket.AF_UNIX:
            prepare(end)
        end.send(self._challenge.greeting)

    def hear(self) -> Guest | None:
        """Read from the connection; returns the guest after the handshake. Raises ``OSError`` if it is lost."""
        with suppress(BlockingIOError):
            more = self.end.recv(Challenge.size - len(self._said))
            if not more:
                raise ConnectionResetError("the other end closed the connection")
            self._said += more
        if len(self._said) < Challenge.size:
            return None
        purpose, reply = self._challenge.judge(self._said)
        self.end.send(reply)
        self.end.settimeout(_STRANGER_SECONDS)
        return Guest(self.end, self.address, purpose)


class Door:
    """Authenticates connections to ``listener`` until ``close``, which also closes the listener."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._key = key
        self._guests: queue.SimpleQueue[Guest] = queue.SimpleQueue()
        self._strangers: dict[Stranger, None] = {}
        """In order of arrival."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="node-door", daemon=True)
        self._name = listener.getsockname()
        self._thread.start()

    @property
    def host(self) -> str:
        """The address that machines connect to."""
        return str(self._name[0])

    @property
    def port(self) -> int:
        return int(self._name[1])

    def wait(self) -> Guest | None:
        """The next connection; None if there was none for a moment."""
        try:
            return self._guests.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening and close the connections that ``wait`` has not returned. May be called again."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes a blocked accept
        self._thread.join()
        self._listener.close()
        with suppress(queue.Empty):
            while True:
                self._guests.get_nowait().end.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while not self._closed.is_set():
                    self._look(selector)
            finally:
                for stranger in tuple(self._strangers):
                    self._forget(selector, stranger).close()

    def _look(self, selector: selectors.BaseSelector) -> None:
        """Read from connections, close connections that were silent for too long, and accept new ones."""
        accepts = False
        for key, _ in selector.select(_LOOK_SECONDS):
            if key.data is None:
                accepts = True
            else:
                self._hear(selector, key.data)
        now = time.monotonic()
        while self._strangers and (oldest := next(iter(self._strangers))).until < now:
            self._forget(selector, oldest).close()
        if accepts:
            self._accept(selector)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        for _ in range(_AT_ONCE):
            try:
                end, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors, or the listener is closed
                self._closed.wait(_LOOK_SECONDS / 4)
                return
            if len(self._strangers) >= _MOST:
                self._make_room(selector)
            try:
                stranger = Stranger(end, str(address[0]) if address else "a process on this machine", self._key)
            except OSError:  # it is gone already
                end.close()
                continue
            self._strangers[stranger] = None
            selector.register(end, selectors.EVENT_READ, stranger)

    def _make_room(self, selector: selectors.BaseSelector) -> None:
        busiest = Counter(stranger.address for stranger in self._strangers).most_common(1)[0][0]
        oldest = next(stranger for stranger in self._strangers if stranger.address == busiest)
        self._forget(selector, oldest).close()

    def _hear(self, selector: selectors.BaseSelector, stranger: Stranger) -> None:
        try:
            guest = stranger.hear()
        except OSError:
            self._forget(selector, stranger).close()
            return
        if guest is None:
            return
        self._forget(selector, stranger)
        if guest.purpose is None:
            guest.end.close()
        if guest.purpose is not None or self._guests.qsize() < _MOST_REFUSED:
            self._guests.put(guest)

    def _forget(self, selector: selectors.BaseSelector, stranger: Stranger) -> socket.socket:
        """Stop tracking an unauthenticated connection; returns its socket."""
        del self._strangers[stranger]
        selector.unregister(stranger.end)
        return stranger.end
