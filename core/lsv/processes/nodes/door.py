"""A listening socket that finds out who has the key. Connections that say nothing keep no others waiting."""

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
"""What a connection gets to show that it has the key."""
_MOST = 256
"""Connections that have yet to show it. When another one comes, the oldest of the busiest address is closed."""
_BACKLOG = 512
_AT_ONCE = 16
"""Connections that are accepted before those that speak have their turn again."""
_MOST_REFUSED = 1024
"""Connections of another key that wait to be reported."""


class Guest(NamedTuple):
    """A connection that has shown that it has the key, or that it has another one."""

    end: socket.socket
    address: str
    purpose: int | None
    """What it has come for; None for one of another key, whose connection is closed."""


def listen(address: str, port: int) -> socket.socket:
    """A listener for a ``Door``. Raises ``OSError`` where that can't be; of port 0 the system makes a free one."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(found[4][:2], family=found[0], backlog=_BACKLOG)


class Stranger:
    """A connection that has yet to show that it has the key."""

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
        """Take what it says; the guest once that is all. Raises ``OSError`` where it has gone."""
        with suppress(BlockingIOError):
            more = self.end.recv(Challenge.size - len(self._said))
            if not more:
                raise ConnectionResetError("the other end has closed the connection")
            self._said += more
        if len(self._said) < Challenge.size:
            return None
        purpose, reply = self._challenge.judge(self._said)
        self.end.send(reply)
        self.end.settimeout(_STRANGER_SECONDS)
        return Guest(self.end, self.address, purpose)


class Door:
    """Lets in who comes to ``listener``, from the start to ``close``, which closes that, too."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._key = key
        self._guests: queue.SimpleQueue[Guest] = queue.SimpleQueue()
        self._strangers: dict[Stranger, None] = {}
        """In the order in which they came."""
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
        """The next one; None where nobody has come for a moment."""
        try:
            return self._guests.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Let nobody in any more; those who have not been asked for are sent away. May be called again."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # nobody waits for somebody to come any more
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
        """Hear who speaks, send away who has been silent for too long, and accept others."""
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
            except OSError:  # no descriptor is free, or the listener is closed
                self._closed.wait(_LOOK_SECONDS / 4)
                return
            if len(self._strangers) >= _MOST:
                self._make_room(selector)
            try:
                stranger = Stranger(end, str(address[0]) if address else "a process of this machine", self._key)
            except OSError:  # it has gone again
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
        """Expect nothing more from a stranger; its connection."""
        del self._strangers[stranger]
        selector.unregister(stranger.end)
        return stranger.end
