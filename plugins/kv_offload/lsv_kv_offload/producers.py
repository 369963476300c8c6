"""Connections to engines that hand contents on. Who does not answer is left alone for a while: nobody waits for it."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lsv.processes.nodes.handshake import FETCHING, OtherKey, OtherProtocol, introduce
from lsv.transports.exchange import TransferFailed, split_address
from lsv_kv_offload import nearby
from lsv_kv_offload.wire import Late, Line

_CONNECT_SECONDS = 2.0
_STALLED_SECONDS = 2.0
"""A transfer that took at least so long when its time was up says something of its producer; else it began too late."""
_REST_SECONDS = 5.0
_LATE = "it takes longer than --kv-timeout"
_CLOSED = "this engine ends"


class Producers:
    """Used by several threads at a time."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._resting: dict[str, tuple[float, str]] = {}
        self._ends: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()

    @contextmanager
    def call(self, peer: str, until: float | None, silence: float) -> Iterator[Line]:
        """A connection to an engine that has shown that it has the secret, ``until`` a time of ``time.monotonic``, or
        as long as that is not silent for so many seconds. Raises ``TransferFailed``, also for what goes wrong while it
        is used.
        """
        began = time.monotonic()
        with self._lock:
            rests, why = self._resting.get(peer, (0.0, ""))
        if self._closed:
            raise TransferFailed(_CLOSED)
        if began < rests:
            raise TransferFailed(why)
        if until is not None and began >= until:
            raise TransferFailed(_LATE)
        with self._connect(peer) as end:
            try:
                self._note(end)
                self._introduce(end, peer)
                yield Line(end, math.inf, silence) if until is None else Line(end, until)
            except (OSError, ValueError, Late) as fault:
                now = time.monotonic()
                # a producer goes by the same time, and may have closed the connection before this is noticed here
                late = isinstance(fault, TimeoutError | Late) or (until is not None and now >= until)
                if not late:
                    raise TransferFailed(f"the transfer broke off: {fault}") from None
                stalled = now - began >= _STALLED_SECONDS
                raise self._leave_alone(peer, _LATE) if stalled else TransferFailed(_LATE) from None
            finally:
                with self._lock:
                    self._ends.discard(end)

    def close(self) -> None:
        """Break off what is under way, and begin nothing more."""
        with self._lock:
            self._closed = True
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _connect(self, peer: str) -> socket.socket:
        near = nearby.connect(peer, _CONNECT_SECONDS)
        if near is not None:
            return near
        try:
            end = socket.create_connection(split_address(peer), _CONNECT_SECONDS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as fault:
            raise self._leave_alone(peer, f"it can't be reached: {fault.strerror or fault}") from None
        return end

    def _note(self, end: socket.socket) -> None:
        with self._lock:
            if self._closed:
                raise TransferFailed(_CLOSED)
            self._ends.add(end)

    def _introduce(self, end: socket.socket, peer: str) -> None:
        try:
            introduce(end, self._secret, FETCHING)
        except OtherKey:
            raise TransferFailed("it has another LSV_CLUSTER_KEY") from None
        except OtherProtocol:
            raise TransferFailed("the server there does not serve KV blocks") from None
        except OSError as fault:
            raise self._leave_alone(peer, f"it does not answer: {fault.strerror or fault}") from None

    def _leave_alone(self, peer: str, why: str) -> TransferFailed:
        with self._lock:
            self._resting[peer] = (time.monotonic() + _REST_SECONDS, why)
        return TransferFailed(why)
