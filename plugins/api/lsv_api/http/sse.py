"""Server-sent events: framing, errors inside a stream, and comments that keep silent streams open."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import msgspec
from sanic import Request

from lsv_api.http.failures import ErrorForm, Failure, describe_error

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_encoder = msgspec.json.Encoder()


def event(record: Any, name: str = "") -> bytes:
    """An event with a record as its data, under a name where the contract has names."""
    head = f"event: {name}\n".encode("ascii") if name else b""
    return head + b"data: " + _encoder.encode(record) + b"\n\n"


SLOTS = tuple(secrets.token_hex(16) for _ in range(4))
"""Stand in a template's record for what changes from event to event."""


class EventTemplate:
    """Events that differ in a few values only: what stands around these is encoded once.

    ``record`` has the first of ``SLOTS`` in the places of these values, in the order of its fields. ``write`` writes an
    event from its record.
    """

    def __init__(self, record: Any, write: Callable[[Any], bytes] = event) -> None:
        form = write(record)
        for slot in SLOTS:
            form = form.replace(_encoder.encode(slot), b"\0")  # a byte that JSON never has
        self._first, *self._rest = form.split(b"\0")

    def fill(self, *values: Any) -> bytes:
        """The event with these values, byte for byte as ``write`` writes the whole record; spare ones are left out."""
        data = self._first
        for value, behind in zip(values, self._rest, strict=False):
            data += _encoder.encode(value) + behind
        return data


def _as_data(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


class StreamForm(msgspec.Struct, frozen=True, kw_only=True):
    """How a contract writes streams."""

    content_type: str = "text/event-stream"

    ping: bytes | None = PING
    """Keeps a silent stream open; None where nothing can be sent that clients pass over."""

    end: bytes = DONE
    """What comes last, after an error too."""

    error: Callable[[bytes], bytes] = _as_data
    """Writes an error's JSON as an event."""


EVENTS = StreamForm()
"""As OpenAI's API writes streams."""


async def send_events(
    request: Request,
    events: AsyncGenerator[bytes, None],
    form: StreamForm,
    *,
    request_id: str,
    heartbeat: float,
    errors: ErrorForm | None,
) -> Failure | None:
    """Send events as they come, then the end mark; the answer is the error that ended the stream, if one did.

    The status line waits for the first event, at most ``heartbeat`` seconds: until then an error is raised
    and can still have its own status. Later errors are sent as an event. A client that leaves cancels this
    task, which closes ``events``.
    """
    ping = form.ping or b""
    opening = asyncio.ensure_future(anext(events, b""))
    try:
        await asyncio.wait({opening}, timeout=heartbeat if ping else None)
        first = opening.result() if opening.done() else ping
        response = await request.respond(content_type=form.content_type, headers=HEADERS)
        await response.send(first or ping or form.end)
        pings = asyncio.create_task(_ping(response, ping, heartbeat))
        try:
            if not opening.done():
                await response.send(await opening)
            async for data in events:
                await response.send(data)
            failure = None
            end = form.end
        except Exception as error:
            failure = describe_error(error, request_id)
            end = form.error(failure.write(errors)[1]) + form.end
        finally:
            pings.cancel()
        if end:
            await response.send(end)
        return failure
    finally:
        await _close(opening, events)


async def _ping(response: Any, ping: bytes, heartbeat: float) -> None:
    """A comment now and then; cancelled at the end of the stream."""
    while ping:
        await asyncio.sleep(heartbeat)
        await response.send(ping)


async def _close(opening: asyncio.Future[bytes], events: AsyncGenerator[bytes, None]) -> None:
    if not opening.done():
        opening.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await opening
    await events.aclose()
