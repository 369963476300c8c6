"""The producer's side: whoever has the secret gets files of contents it has the names of, and nothing else."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from lsv.errors import ConfigError
from lsv.transports.exchange import Seat, join_address
from lsv.worker.nodes.door import Door, Guest
from lsv.worker.nodes.handshake import FETCHING
from lsv_kv_offload.files import FileTransport
from lsv_kv_offload.wire import OTHER, Late, Line

_log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that a content is waited for which workers were told to put."""
_LOOK_SECONDS = 0.004
_LONGEST = 60.0
"""Seconds that an answer may take, or --kv-timeout where that is more."""
_MOST = 32
"""Engines that are answered at a time."""
_REMEMBERED = 1 << 16


class Coming:
    """Contents on their way into files. The engine's thread adds them, others ask."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, key: bytes) -> None:
        with self._lock:
            self._until[key] = time.monotonic() + _PATIENCE
            if len(self._until) > _REMEMBERED:
                self._until.popitem(last=False)

    def until(self, key: bytes) -> float:
        """Until when to wait for a content."""
        with self._lock:
            return self._until.get(key, 0.0)


class Server:
    """Listens from the start until ``close``; a thread for each connection sends files as they are."""

    def __init__(self, seat: Seat, parts: Sequence[FileTransport]) -> None:
        """``parts`` are the files of each rank. Raises ``ConfigError`` for an address that is not this machine's or is
        taken.
        """
        self._seat, self._parts = seat, parts
        self.coming = Coming()
        self._slots = threading.BoundedSemaphore(_MOST)
        self._closing = False
        self._told: set[str] = set()
        host, port = seat.transfers.host, seat.transfers.port
        try:
            self._door = Door(host, port, seat.secret)
        except OSError as error:
            raise ConfigError(
                f"kv_host, kv_port: {join_address(host, port)} can't be listened at: {error.strerror or error}; it "
                "must be an address of this machine, and a port that nobody has",
                param="kv_port",
            ) from None
        self._thread = threading.Thread(target=self._run, name="kv-server", daemon=True)
        self._thread.start()
        _log.info("the KV cache is handed on at %s", join_address(host, port))

    def close(self) -> None:
        self._closing = True
        self._door.close()

    def _run(self) -> None:
        while not self._closing:
            guest = self._door.wait()
            if guest is None:
                continue
            if not self._is_expected(guest) or not self._slots.acquire(blocking=False):
                guest.end.close()
                continue
            threading.Thread(target=self._serve, args=(guest,), name="kv-sender", daemon=True).start()

    def _is_expected(self, guest: Guest) -> bool:
        if guest.purpose is None:
            self._tell(f"{guest.address} has another LSV_CLUSTER_KEY, or none")
        elif guest.purpose != FETCHING:
            self._tell(f"{guest.address} wants something else than contents: is it a node of --nnodes?")
        return guest.purpose == FETCHING

    def _serve(self, guest: Guest) -> None:
        try:
            with guest.end as end:
                self._answer(end)
        except (OSError, Late):
            pass  # it has gone, or waits no longer
        except ValueError as fault:
            self._tell(f"{guest.address} asks for what can't be asked: {fault}")
        except Exception:
            _log.exception("a part of the KV cache could not be handed on")
        finally:
            self._slots.release()

    def _answer(self, end: socket.socket) -> None:
        line = Line(end, time.monotonic() + max(_LONGEST, self._seat.transfers.timeout))
        ask = line.read_ask()
        if ask.identity != self._seat.site.identity or ask.ranks != self._seat.ranks:
            line.send_size(OTHER)
            return
        for key in ask.keys:
            for part in self._parts:
                if not self._send(line, end, part, key):
                    line.send_size(0)
                    return

    def _send(self, line: Line, end: socket.socket, part: FileTransport, key: bytes) -> bool:
        """Send the file of a content, if there is one or will be."""
        until = min(line.until, self.coming.until(key))
        while (descriptor := part.open(key)) is None:
            if time.monotonic() >= until or self._closing:
                return False
            time.sleep(_LOOK_SECONDS)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            line.send_size(size)
            end.sendfile(file, count=size)
        return True

    def _tell(self, line: str) -> None:
        if line not in self._told and len(self._told) < _MOST:
            self._told.add(line)
            _log.warning("KV cache: %s", line)
