"""Stored responses, as handlers use them: everything is an account's own, and waits for no disk on the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from lsv.settings.caching import cache_root
from lsv_api.http.failures import Unsupported
from lsv_api.responding.database import Bounds, Database, Events, Row
from lsv_api.responding.events import ResponseFailed, frame
from lsv_api.responding.records import ResponseFault, ResponseObject
from lsv_api.responding.requests import ResponsesInputItem
from lsv_api.responding.workers import WorkerMarks
from lsv_base.errors import BadRequest, TooLarge, Unavailable

log = logging.getLogger("lsv.api")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

OFF = "off"
_PURGE_SECONDS = 3600.0
"""How often what has expired is deleted; it is not shown meanwhile."""


class ResponseNotFound(BadRequest):
    """There is no such response, or it is another account's."""

    code = "response_not_found"
    status = 404


class PreviousNotFound(BadRequest):
    """The response that a request goes on from is not there."""

    code = "previous_response_not_found"


class StoredOutput(msgspec.Struct):
    """The part of a stored response that goes on with a conversation."""

    status: str
    output: list[ResponsesInputItem]


class ResponseStore:
    """Opens its file when it is first needed. Without a path nothing is stored."""

    def __init__(self, path: Path | None, bounds: Bounds) -> None:
        self.path = path
        self._bounds = bounds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._database: Database | None = None
        self._purged = -math.inf
        self._marks = None if path is None else WorkerMarks(path.with_name(f"{path.name}-workers"))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ResponseStore:
        chosen = settings.get("api.responses_path")
        path = Path(chosen).expanduser() if chosen else cache_root() / "lsv" / "responses" / "responses.db"
        given: dict[str, Any] = {
            "count": settings.get("api.responses_count"),
            "bytes": _scaled(settings.get("api.responses_mb"), 1 << 20),
            "seconds": _scaled(settings.get("api.responses_days"), 86_400),
        }
        bounds = Bounds(**{name: value for name, value in given.items() if value is not None})
        return cls(None if chosen == OFF else path, bounds)

    @property
    def is_on(self) -> bool:
        return self.path is not None

    async def close(self) -> None:
        if self._database is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown()
        if self._marks is not None:
            self._marks.close()

    def worker(self) -> str:
        """What this process is called in responses that it works on. Raises ``Unavailable``."""
        assert self._marks is not None
        try:
            return self._marks.take()
        except OSError as error:
            raise self._refuse(error) from None

    async def keep(self, owner: str, response: ResponseObject, items: Sequence[ResponsesInputItem]) -> bool:
        """Store a response that has ended. Returns whether it is stored: failing to is no reason to lose the answer."""
        row = Row(id=response.id, owner=owner, body=encode(response), input=encode(items))
        try:
            kept = await self.run(Database.save, row, [item.id for item in response.output])
        except Unavailable:
            return False
        if not kept:
            log.warning("response %s is not stored: %d bytes are over --api-responses-mb", response.id, row.size)
        return kept

    async def enter(
        self, owner: str, response: ResponseObject, items: Sequence[ResponsesInputItem], events: Events
    ) -> None:
        """Store a response that this process is to work on. Raises ``Unavailable`` or ``TooLarge``."""
        row = Row(id=response.id, owner=owner, body=encode(response), input=encode(items), worker=self.worker())
        if not await self.run(Database.save, row, (), events):
            raise TooLarge(f"The response has {row.size} bytes, which are over --api-responses-mb", param="background")

    async def advance(self, owner: str, response: ResponseObject, events: Events) -> None:
        """Store the next events of a response."""
        shown = msgspec.structs.replace(response, output=[])
        row = Row(id=response.id, owner=owner, body=encode(shown), input=b"", worker=self.worker())
        await self.run(Database.update, row, row.worker, (), events)

    async def leave(self, owner: str, response: ResponseObject, events: Events) -> None:
        """Store a response that has ended, with its last events."""
        row = Row(id=response.id, owner=owner, body=encode(response), input=b"")
        await self.run(Database.update, row, self.worker(), [item.id for item in response.output], events)

    async def follow(self, owner: str, id: str, after: int) -> tuple[bool, Events]:
        """Whether a response is still worked on, and its events after one. Raises ``ResponseNotFound``."""
        found = await self.run(Database.follow, owner, id, after)
        if found is None:
            raise _not_found(id)
        worker, events = found
        if worker and not events and not self._is_working(worker):
            await self.fetch(owner, id)  # which ends it
            return await self.follow(owner, id, after)
        return bool(worker), events

    def _is_working(self, worker: str) -> bool:
        return self._marks is not None and self._marks.is_working(worker)

    async def _bury(self, row: Row) -> None:
        """End a response whose process was killed."""
        response = msgspec.json.decode(row.body, type=ResponseObject)
        response.status = "failed"
        response.error = ResponseFault(code="server_error", message="The server was killed while it worked on this")
        number = await self.run(Database.count_events, row.id)
        event = frame(ResponseFailed(sequence_number=number, response=response))
        ended = msgspec.structs.replace(row, body=encode(response), worker="")
        await self.run(Database.update, ended, row.worker, (), [(number, event)])

    async def fetch(self, owner: str, id: str) -> Row:
        """Raises ``ResponseNotFound``."""
        found = await self._find(owner, id)
        if found is not None and found.worker and not self._is_working(found.worker):
            await self._bury(found)
            found = await self._find(owner, id)
        if found is None:
            raise _not_found(id)
        return found

    async def _find(self, owner: str, id: str) -> Row | None:
        """A stored response; where nothing was ever stored, no file is made."""
        if self.path is None or (self._database is None and not self.path.exists()):
            return None
        return await self.run(Database.fetch, owner, id)

    async def continue_from(self, owner: str, id: str) -> list[ResponsesInputItem]:
        """The conversation of an earlier response, its output included. Raises ``BadRequest``."""
        self.check_on("previous_response_id", "previous_response_id")
        try:
            row = await self.fetch(owner, id)
        except ResponseNotFound:
            raise PreviousNotFound(
                f"previous_response_id: there is no response {id[:64]!r}: it was not stored, has expired, or was "
                "deleted; send the whole conversation as input",
                param="previous_response_id",
            ) from None
        found = msgspec.json.decode(row.body, type=StoredOutput)
        if found.status not in ("completed", "incomplete"):
            raise BadRequest(
                f"previous_response_id: the response {id[:64]!r} is {found.status}; name one that has ended by itself",
                param="previous_response_id",
            )
        return [*msgspec.json.decode(row.input, type=list[ResponsesInputItem]), *map(plain, found.output)]

    async def resolve(self, owner: str, items: Sequence[ResponsesInputItem]) -> list[ResponsesInputItem]:
        """Items with stored ones in the places of references. Raises ``BadRequest`` for those that are not stored."""
        wanted = [item.id or "" for item in items if item.type == "item_reference"]
        if not wanted:
            return list(items)
        self.check_on("item_reference", "input")
        bodies = await self.run(Database.find_items, owner, wanted)
        found = {
            item.id: plain(item)
            for body in set(bodies.values())
            for item in msgspec.json.decode(body, type=StoredOutput).output
        }
        for index, item in enumerate(items):
            if item.type == "item_reference" and item.id not in found:
                raise BadRequest(
                    f"input[{index}].id: no stored response has the item {(item.id or '')[:64]!r}; send it whole",
                    param=f"input[{index}].id",
                )
        return [found[item.id] if item.type == "item_reference" else item for item in items]

    def check_on(self, what: str, param: str) -> None:
        """Raises ``Unsupported`` where nothing is stored."""
        if not self.is_on:
            raise Unsupported(
                f"{what} is not available: this server stores no responses (--api-responses-path off)", param=param
            )

    async def run(
        self,
        work: Callable[Concatenate[Database, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Have work done on the database. Raises ``Unavailable`` where the file can't be used."""

        def do() -> Result:
            return work(self._open(), *args, **kwargs)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, do)
        except (sqlite3.Error, OSError) as error:
            raise self._refuse(error) from None

    def _refuse(self, error: Exception) -> Unavailable:
        log.error("responses can't be stored in %s: %s", self.path, error)
        return Unavailable(
            "Stored responses can't be read or written; the server's log says why. Send store: false and the whole "
            "conversation"
        )

    def _open(self) -> Database:
        assert self.path is not None
        if self._database is None:
            self._database = Database(self.path, self._bounds)
        if time.monotonic() - self._purged > _PURGE_SECONDS:
            self._database.purge()
            self._purged = time.monotonic()
        return self._database


def _not_found(id: str) -> ResponseNotFound:
    return ResponseNotFound(f"There is no response {id[:64]!r}: it was not stored, has expired, or was deleted")


def plain(item: ResponsesInputItem) -> ResponsesInputItem:
    """An item of an output as part of a conversation, without what only readers of the answer need."""
    for part in item.content if isinstance(item.content, list) else ():
        part.logprobs = None
    if item.type == "custom_tool_call":
        item.status = "completed"
    return item


def encode(record: ResponseObject | Iterable[ResponsesInputItem]) -> bytes:
    return msgspec.json.encode(record)


def _scaled(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor
