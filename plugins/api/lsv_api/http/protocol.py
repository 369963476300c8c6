"""Sanic's HTTP protocol with a cheaper way to send: a streamed token is one call of it."""

from __future__ import annotations

from time import monotonic
from typing import Any

from sanic.exceptions import RequestCancelled
from sanic.server.protocols.http_protocol import HttpProtocol

_SIGNALS = ("http.lifecycle.send", "http.lifecycle.<")


class Protocol(HttpProtocol):
    """Sends no signal where nobody listens to it, as Sanic does once it has rewritten its classes (``TOUCHUP``)."""

    __slots__ = ("_is_heard",)

    def __init__(self, *, app: Any, **options: Any) -> None:
        super().__init__(app=app, **options)
        self._is_heard = any(signal.name.startswith(_SIGNALS) for signal in app.signal_router.routes)

    async def send(self, data: bytes) -> None:
        """Write, once the client has read enough of what was written before. Raises ``RequestCancelled``."""
        if self._is_heard:
            await super().send(data)
            return
        if not self._can_write.is_set():
            await self._can_write.wait()
        transport = self.transport
        if transport is None or transport.is_closing():
            raise RequestCancelled
        transport.write(data)
        self._time = monotonic()
