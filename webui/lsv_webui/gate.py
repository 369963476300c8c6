"""Whose requests the page takes, and how large they may be: checked before Gradio sees them.

The page has no login and may use a key of the server, so it guards itself as a server without a key does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from lsv.errors import BadRequest, LsvError, TooLarge, Unavailable
from lsv.processes.visitors import Visitors
from lsv_webui.options import PageOptions

BODY_BYTES = 32 << 20
"""What a request may bring that is no upload: a conversation without its files."""
UPLOAD_BYTES = 256 << 20
"""What the files of one upload may have."""
FOLDER_BYTES = 4 << 30
"""What the files of all visitors may have together. They stay for a week at most."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class FolderFull(Unavailable):
    """There is no room for another upload."""

    code = "uploads_full"
    status = 507


class Gate:
    """An ASGI application around the page's own."""

    def __init__(self, app: App, *, options: PageOptions, uploads: Path | None = None) -> None:
        self._app = app
        self._uploads = uploads
        self._arriving = 0
        self._visitors = Visitors(
            options.host,
            hosts=options.allowed_hosts,
            name_it="name it with --webui-allowed-hosts",
            name_them="open it by its own address, which a proxy in front has to pass on as Host",
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
        """Raises ``FolderFull`` where what arrives now would not fit beside what is there."""
        kept = 0 if self._uploads is None else await asyncio.to_thread(measure, self._uploads)
        if kept + self._arriving > FOLDER_BYTES:
            raise FolderFull(f"Uploads may have {FOLDER_BYTES >> 30} GiB together, which are used up; try again later")


class Answer:
    """Sends an answer, and knows whether it has begun."""

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
        """How much it may have: its length, where the request says so."""
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
    """Bytes of all files in a folder. Files that vanish meanwhile have none."""
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
