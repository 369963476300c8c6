"""Checks the origin and the size of requests before Gradio sees them.

The page has no login and may use a key of the server, so it needs the same checks as a server without a key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from lsv_base.errors import BadRequest, LsvError, TooLarge, Unavailable
from lsv_base.processes.visitors import Visitors
from lsv_webui.options import PageOptions

BODY_BYTES = 32 << 20
"""Size limit of a request that is not an upload, such as a conversation without its files."""
UPLOAD_BYTES = 256 << 20
"""Size limit of one upload."""
FOLDER_BYTES = 4 << 30
"""Size limit of all uploads together, which are deleted after a week."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class FolderFull(Unavailable):
    """All uploads together have reached their limit."""

    code = "uploads_full"
    status = 507


class Gate:
    """An ASGI application that wraps the page's own."""

    def __init__(self, app: App, *, options: PageOptions, uploads: Path | None = None) -> None:
        self._app = app
        self._uploads = uploads
        self._arriving = 0
        self._visitors = Visitors(
            options.host,
            hosts=options.allowed_hosts,
            name_it="name it with --webui-allowed-hosts",
            name_them="open the page by its own address; a proxy in front must pass on the Host header",
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer = Answer(send)
        try:
            headers = _read_headers(scope)
            self._visitors.check(scope.get("method", "GET"), headers)
            await self._pass_on(scope, headers, receive, answer)
        except LsvError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            elif not answer.begun:
                await _refuse(send, error)

    async def _pass_on(self, scope: Message, headers: dict[str, str], receive: Receive, answer: Answer) -> None:
        if not str(scope.get("path", "")).rstrip("/").endswith("/upload"):
            await self._app(scope, Body(receive, headers, BODY_BYTES).receive, answer.send)
            return
        body = Body(receive, headers, UPLOAD_BYTES)
        self._arriving += body.size
        try:
            await self._make_sure_of_room()
            await self._app(scope, body.receive, answer.send)
        finally:
            self._arriving -= body.size

    async def _make_sure_of_room(self) -> None:
        """Raises ``FolderFull`` if the arriving uploads would exceed the limit."""
        kept = 0 if self._uploads is None else await asyncio.to_thread(measure, self._uploads)
        if kept + self._arriving > FOLDER_BYTES:
            raise FolderFull(f"All uploads together are over the limit of {FOLDER_BYTES >> 30} GiB; try again later")


class Answer:
    """Sends an answer and records whether it has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def send(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


class Body:
    """A request's body, of at most ``limit`` bytes. Raises ``TooLarge``, or ``BadRequest`` for a wrong length."""

    def __init__(self, receive: Receive, headers: dict[str, str], limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._received = 0
        length = headers.get("content-length", "")
        if length and not (length.isascii() and length.isdigit()):
            raise BadRequest("Content-Length must be a number")
        self.size = int(length) if length else limit
        """The declared length, or the limit if none is declared."""
        self._check(self.size)

    async def receive(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        self._check(self._received)
        return message

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge(f"The request is over the page's limit of {self._limit >> 20} MiB; send less")


def measure(folder: Path) -> int:
    """Bytes of all files in a folder, without files that vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name), follow_symlinks=False).st_size
            except OSError:
                continue
    return total


def _read_headers(scope: Message) -> dict[str, str]:
    """The first value of each header."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return found


async def _refuse(send: Send, error: LsvError) -> None:
    body = msgspec.json.encode({"error": {"message": error.message, "code": error.code}})
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
