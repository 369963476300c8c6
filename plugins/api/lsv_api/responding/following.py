"""Following a response of the background by its stored events, from any process and from any event on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import msgspec

from lsv_api.records.responses import ErrorResponse
from lsv_api.responding.events import ResponseErrorEvent, frame
from lsv_api.responding.store import ResponseStore
from lsv_base.errors import BadRequest

POLL_SECONDS = 0.1
"""How often it is looked for further events."""


class Following:
    """One client that follows a response of ``owner`` from the event after ``after`` on."""

    def __init__(self, store: ResponseStore, owner: str, id: str, after: int) -> None:
        self._store = store
        self._owner = owner
        self._id = id
        self._after = after

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events, until the response has ended."""
        working = True
        while working:
            working, events = await self._store.follow(self._owner, self._id, self._after)
            if events:
                self._after = events[-1][0]
                yield b"".join(data for _, data in events)
            elif working:
                await asyncio.sleep(POLL_SECONDS)

    def fail(self, body: bytes) -> bytes:
        """An event for an error of following, such as that the response was deleted."""
        error = msgspec.json.decode(body, type=ErrorResponse).error
        return frame(
            ResponseErrorEvent(
                sequence_number=self._after + 1, code=error.code, message=error.message, param=error.param
            )
        )


def read_resumption(given: Mapping[str, str]) -> int | None:
    """The event after which a stream is to go on; None where no stream is asked for. Raises ``BadRequest``."""
    after, stream = given.get("starting_after"), given.get("stream", "false")
    if stream.lower() not in ("true", "false", "1", "0"):
        raise BadRequest(f"stream must be true or false, got {stream[:20]!r}", param="stream")
    streams = stream.lower() in ("true", "1")
    if after is None:
        return -1 if streams else None
    if not streams:
        raise BadRequest("starting_after needs stream to be true", param="starting_after")
    if not (after.isascii() and after.isdecimal() and len(after) < 10):
        raise BadRequest(f"starting_after must be the number of an event, got {after[:20]!r}", param="starting_after")
    return int(after)
