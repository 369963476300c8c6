"""A listening socket that tells who has the key. Whoever says nothing, or one byte at a time, keeps nobody waiting."""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import suppress
from typing import NamedTuple

from lsv.processes.nodes.handshake import OtherKey, admit
from lsv.processes.nodes.reaching import prepare

_LOOK_SECONDS = 0.2
_STRANGER_SECONDS = 2.0
"""What whoever connects gets to show who it is."""
_MOST = 64
"""Connections that are being looked at; others wait."""


class Guest(NamedTuple):
    """Somebody who has connected and shown that it has the key, or that it has another one."""

    end: socket.socket
    address: str
    purpose: int | None
    """What it has come for; None for one of another key, whose connection is closed."""


def listen(address: str, port: int) -> socket.socket:
    """A listener for a ``Door``. Raises ``OSError`` where that can't be; of port 0 the system makes a free one."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(found[4][:2], family=found[0])


class Door:
    """Lets in who comes to ``listener``, from the start to ``close``, which closes that, too."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._listener.settimeout(_LOOK_SECONDS)
        self._key = key
        self._guests: queue.SimpleQueue[Guest] = queue.SimpleQueue()
        self._room = threading.Semaphore(_MOST)
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
        while not self._closed.is_set():
            if not self._room.acquire(timeout=_LOOK_SECONDS):
                continue
            try:
                end, address = self._listener.accept()
            except OSError:  # nobody, or somebody who has gone again
                self._room.release()
                continue
            named = str(address[0]) if address else "a process of this machine"
            threading.Thread(target=self._greet, args=(end, named), name="node-guest", daemon=True).start()

    def _greet(self, end: socket.socket, address: str) -> None:
        purpose: int | None = None
        try:
            end.settimeout(_STRANGER_SECONDS)
            if end.family != socket.AF_UNIX:
                prepare(end)
            purpose = admit(end, self._key)
        except OtherKey:
            end.close()
        except OSError:
            end.close()
            return
        finally:
            self._room.release()
        if self._closed.is_set():
            end.close()
        self._guests.put(Guest(end, address, purpose))
