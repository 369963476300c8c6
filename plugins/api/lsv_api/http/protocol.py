"""Sanic's HTTP protocol with a cheaper way to send, and bounds on what connections may hold.

A streamed token is one call of ``send``. A client could hold a connection forever, so there are four limits: on the
number of connections, on the time for the head of a request, on the time for which an answer waits to be read, and on
the size of pipelined requests.
"""

from __future__ import annotations

import asyncio
import resource
from functools import cache
from time import monotonic
from typing import Any

from sanic.exceptions import RequestCancelled
from sanic.http import Stage
from sanic.server.protocols.http_protocol import HttpProtocol

from lsv_api.http.http1 import Http1

UNREAD_SECONDS = 300.0
"""How long an answer may wait for a client that reads nothing of it."""

_OPEN_FILES = 1 << 16
"""Open files that the process asks for; what it may have can be less."""

_FREED = 16
"""One in so many of the waiting connections goes when there is room for no more."""

_SIGNALS = ("http.lifecycle.send", "http.lifecycle.<")


@cache
def most_connections() -> int:
    """How many connections a process holds: three quarters of the files that it may open. Raises its limit of those."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted * 3 // 4


class Protocol(HttpProtocol):
    """One connection. Sends no signal where nobody listens to it, as Sanic does once it has rewritten its classes
    (``TOUCHUP``).
    """

    HTTP_CLASS = Http1

    __slots__ = ("_is_heard",)

    connections: set[Protocol]

    def __init__(self, *, app: Any, **options: Any) -> None:
        super().__init__(app=app, **options)
        self._is_heard = any(signal.name.startswith(_SIGNALS) for signal in app.signal_router.routes)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            self._make_room()

    def _make_room(self) -> None:
        """Drop those that have waited for their clients longest; where none waits, this one.

        Some at once: looking for them takes longer the more there are.
        """
        waiting = sorted((one for one in self.connections if one.waits_for_client), key=lambda one: one._time)
        for one in waiting[: len(waiting) // _FREED + 1] or [self]:
            one.transport.abort()

    @property
    def waits_for_client(self) -> bool:
        """Whether the client is to do something next: to ask, to send the rest of its request, or to read."""
        http = self.http
        if http is None:
            return False
        return http.stage in (Stage.IDLE, Stage.REQUEST) or _lacks_body(http) or not self._can_write.is_set()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request, whose time counts from its first byte: it can't be drawn out byte by byte."""
        http, since = self.http, self._time
        super().data_received(data)
        if http is None:
            return
        if http.stage is not Stage.IDLE or _lacks_body(http):
            self._time = since
        if http and not _lacks_body(http):
            self.watch_client()

    def watch_client(self) -> None:
        """Keep reading while a request is handled, because only a reader sees that its client has left.

        Sanic stops reading when its buffer is full and resumes when it needs more of a body. A client that fills the
        buffer with pipelined requests is disconnected, because it could not be watched without unlimited memory.
        """
        if self.transport is None:
            return
        if len(self.recv_buffer) < self.app.config.REQUEST_BUFFER_SIZE:
            self.transport.resume_reading()
        else:
            self.transport.abort()

    async def send(self, data: bytes) -> None:
        """Write, once the client has read enough of what was written before.

        Raises ``RequestCancelled`` where it has left, or reads nothing for ``UNREAD_SECONDS``.
        """
        if not self._can_write.is_set():
            await self._wait_for_reader()
        if self._is_heard:
            await super().send(data)
            return
        transport = self.transport
        if transport is None or transport.is_closing():
            raise RequestCancelled
        transport.write(data)
        self._time = monotonic()

    async def _wait_for_reader(self) -> None:
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await self._can_write.wait()
        except TimeoutError:
            if self.transport is not None:
                self.transport.abort()
            raise RequestCancelled from None


def _lacks_body(http: Any) -> bool:
    """Whether more of a request's body is to come."""
    kind = getattr(http, "request_body", None)
    return kind == "chunked" or (bool(kind) and http.request_bytes_left > 0)
