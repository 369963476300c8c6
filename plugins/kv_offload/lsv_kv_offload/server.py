"""The producer's side: whoever has the secret gets files of contents it has the names of, and nothing else."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Sequence

from lsv.processes.nodes.door import Door, Guest, listen
from lsv.processes.nodes.handshake import FETCHING
from lsv.transports.exchange import Seat, join_address
from lsv_base.errors import ConfigError
from lsv_kv_offload import nearby
from lsv_kv_offload.coming import PATIENCE, Coming
from lsv_kv_offload.files import FileTransport
from lsv_kv_offload.notices import Notices
from lsv_kv_offload.wire import BUSY, OTHER, Late, Line

_log = logging.getLogger(__name__)

_LONGEST = 600.0
"""Seconds that an answer may take, or a word of it, however long who asks would wait."""
_SIGN_SECONDS = 1.0
"""Who waits for what is being computed hears that it still is."""
_QUESTION_SECONDS = 10.0
_MOST = 256
"""Questions that are answered at a time."""
_MOST_TOLD = 32


class Sign:
    """Now and then tells who waits at the other end of a line that this one is still there."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._every = min(_SIGN_SECONDS, line.silence / 4)
        self._next = time.monotonic() + self._every

    def give(self) -> float:
        """Say it, if it is time to; returns seconds until it will be. Raises ``OSError`` and ``Late``."""
        now = time.monotonic()
        if now >= self._line.until:
            raise Late
        if now >= self._next:
            self._next = now + self._every
            if self._line.until == math.inf:
                self._line.send_size(BUSY)
        return min(self._next, self._line.until) - now


class Server:
    """Listens from the start until ``close``; a thread for each connection sends files as they are."""

    def __init__(self, seat: Seat, parts: Sequence[FileTransport]) -> None:
        """``parts`` are the files of each rank. Raises ``ConfigError`` for an address that is not this machine's or is
        taken.
        """
        self._seat, self._parts = seat, parts
        self.coming, self.notices = Coming(), Notices()
        self._slots = threading.BoundedSemaphore(_MOST)
        self._closing = False
        self._told: set[str] = set()
        host, port = seat.transfers.host, seat.transfers.port
        try:
            listener = listen(host, port)
        except OSError as error:
            raise ConfigError(
                f"kv_host, kv_port: {join_address(host, port)} can't listen there: {error.strerror or error}; use an "
                "address of this machine and a free port",
                param="kv_port",
            ) from None
        listeners = (listener, nearby.listen(join_address(host, port)))
        self._doors = [Door(one, seat.secret) for one in listeners if one is not None]
        for door in self._doors:
            threading.Thread(target=self._run, args=(door,), name="kv-server", daemon=True).start()
        _log.info("the KV cache is handed on at %s", join_address(host, port))

    def close(self) -> None:
        self._closing = True
        self.coming.close()
        self.notices.close()
        for door in self._doors:
            door.close()

    def _run(self, door: Door) -> None:
        while not self._closing:
            guest = door.wait()
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
                self._answer(Line(end, time.monotonic() + _QUESTION_SECONDS))
        except (OSError, Late):
            pass  # it has gone, or waits no longer
        except ValueError as fault:
            self._tell(f"{guest.address} asks for what can't be asked: {fault}")
        except Exception:
            _log.exception("a part of the KV cache could not be handed on")
        finally:
            self._slots.release()

    def _answer(self, line: Line) -> None:
        ask = line.read_ask()
        now, seconds = time.monotonic(), min(_LONGEST, ask.seconds)
        line.until, line.silence = (math.inf, seconds) if ask.pending else (now + seconds, math.inf)
        pending = now + PATIENCE if ask.pending else 0.0
        if ask.identity != self._seat.site.identity or ask.ranks != self._seat.ranks:
            line.send_size(OTHER)
            return
        if ask.watches:
            self._watch(line)
        for key in ask.keys:
            for part in self._parts:
                if not self._send(line, part, key, pending):
                    line.send_size(0)
                    return

    def _watch(self, line: Line) -> None:
        """Send notices until either end closes."""
        seen, waiting = 0, Sign(line)
        while not self._closing:
            keys, seen = self.notices.wait(seen, waiting.give())
            if keys:
                line.send_notice(keys)

    def _send(self, line: Line, part: FileTransport, key: bytes, pending: float) -> bool:
        """Send the file of a content, if there is one or will be; until ``pending`` it may still be promised."""
        waiting = Sign(line)
        while (descriptor := None if key in self.notices else part.open(key)) is None:
            if self._closing or not self.coming.wait(key, waiting.give(), pending):
                return False
        with os.fdopen(descriptor, "rb") as file:
            line.send_file(file)
        return True

    def _tell(self, line: str) -> None:
        if line not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(line)
            _log.warning("KV cache: %s", line)
