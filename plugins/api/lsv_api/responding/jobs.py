"""Responses in the background: the model goes on when the client has left, and every step is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress
from functools import partial

from lsv_api.http.context import Exchange, Traffic
from lsv_api.http.failures import describe_error
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.records.responses import ErrorBody
from lsv_api.responding.answering import Begun
from lsv_api.responding.database import Database
from lsv_api.responding.naming import naming_own_fields
from lsv_api.responding.requests import ResponsesInputItem
from lsv_api.responding.store import ResponseStore
from lsv_base.errors import Unavailable

log = logging.getLogger("lsv.api")

_FLUSH_SECONDS = 0.1
"""How long events wait to be stored together."""
_WATCH_SECONDS = 0.2
"""How often it is looked whether responses are still wanted."""
_STOPPED = ErrorBody(
    message="The server stopped before the response was complete", type="server_error", code="cancelled"
)


class Job:
    """One response. Its events are stored a moment after they were made."""

    def __init__(
        self, begun: Begun, items: Sequence[ResponsesInputItem], exchange: Exchange, store: ResponseStore
    ) -> None:
        self.running = asyncio.Event()
        self.response = begun.writer.response
        self._writer = begun.writer
        self._answer = GrowingAnswer(begun.asked, exchange, watch=begun.writer.watch)
        self._items = items
        self._exchange = exchange
        self._owner = exchange.account.name
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._stopping = False
        self._events: list[tuple[int, bytes]] = []
        """Events that are not stored yet, with their numbers."""
        self._made = 0

    async def start(self, traffic: Traffic) -> asyncio.Task[None]:
        """Store the response as one that waits, and begin to work. Raises ``Unavailable`` or ``TooLarge``."""
        self._add(self._writer.begin(queued=True))
        await self._store.enter(self._owner, self.response, self._items, self._events)
        self._events = []
        self._task = asyncio.create_task(self._run(traffic))
        await self.running.wait()
        return self._task

    def stop(self, *, stopping: bool = False) -> None:
        """End early: the response is cancelled, or has failed because the server is ``stopping``."""
        if self._task is not None and not self._ended.is_set():
            self._ended.set()  # storing the end is not to be cancelled
            self._stopping = stopping
            self._task.cancel()

    async def _run(self, traffic: Traffic) -> None:
        with traffic.counted():
            self.running.set()
            flushing = asyncio.create_task(self._keep_flushing())
            try:
                await self._answer_whole()
            except asyncio.CancelledError:
                self._add(self._writer.fail(_STOPPED) if self._stopping else self._writer.cancel())
            except Exception as error:
                failure = describe_error(error, self._exchange.request_id, "a response in the background")
                self._add(self._writer.fail(failure.body))
            self._ended.set()
            await flushing
            with suppress(Unavailable):  # which is logged
                await self._store.leave(self._owner, self.response, self._events)
        log.info("%s in the background: %s, %d tokens", self.response.id, self.response.status, self._exchange.tokens)

    async def _answer_whole(self) -> None:
        writer, answer = self._writer, self._answer
        with naming_own_fields():
            async with aclosing(answer.deltas()) as growing:
                async for deltas in growing:
                    if self.response.status == "queued":
                        self._add(writer.start())
                    self._add(writer.add(deltas))
        if self.response.status == "queued":
            self._add(writer.start())
        self._add(writer.close(answer))
        self._add(writer.conclude())

    async def _keep_flushing(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._ended.wait()
            if self._events and not self._ended.is_set():
                events = list(self._events)
                with suppress(Unavailable):
                    await self._store.advance(self._owner, self.response, events)
                    del self._events[: len(events)]

    def _add(self, made: Sequence[bytes]) -> None:
        self._events += enumerate(made, self._made)
        self._made += len(made)


class BackgroundJobs:
    """All responses that this process works on in the background."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def start(self, begun: Begun, items: Sequence[ResponsesInputItem], exchange: Exchange) -> None:
        """Begin to work on a response, which is stored by then."""
        job = Job(begun, items, exchange, self._store)
        task = await job.start(exchange.api.traffic)
        self._jobs[job.response.id] = job
        self._tasks.add(task)
        task.add_done_callback(partial(self._forget, job.response.id))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End what is under way: it has failed."""
        if self._watching is not None:
            self._watching.cancel()
        for job in self._jobs.values():
            job.stop(stopping=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, id: str, task: asyncio.Task[None]) -> None:
        del self._jobs[id]
        self._tasks.discard(task)

    async def _watch(self) -> None:
        """Stop what clients of any process have cancelled or deleted."""
        while self._jobs:
            await asyncio.sleep(_WATCH_SECONDS)
            with suppress(Unavailable):
                for id in await self._store.run(Database.find_unwanted, self._store.worker(), list(self._jobs)):
                    if id in self._jobs:
                        self._jobs[id].stop()
