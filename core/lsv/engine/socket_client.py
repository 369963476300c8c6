"""The client of an engine in another process: one connection carries all requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lsv.config import Fit
from lsv.engine.admission import check_media_size
from lsv.engine.client import EngineStatus, Vector
from lsv.engine.client_base import ClientBase, read_vector
from lsv.engine.mailbox import merge_all
from lsv.engine.messages import (
    Abort,
    ClientMessage,
    Control,
    Controlled,
    EngineMessage,
    Failed,
    Hello,
    Progress,
    Ready,
    Stats,
    Submit,
    Tokens,
    Update,
)
from lsv.engine.process import EngineProcess
from lsv.engine.sharing import shared_media
from lsv.errors import EngineDied, LsvError, StartError, Unavailable, from_record
from lsv.plugins import Plugins
from lsv.processes.wire import FrameReader, encode_frame
from lsv.request.outputs import Chunk
from lsv.request.spec import RequestSpec
from lsv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lsv.media.service import MediaService

log = logging.getLogger(__name__)

_READ = 1 << 18
_MOST_MEDIA = 512 << 20
"""Bytes of prepared media that a request may send: well below what a frame holds, so that one reaches all ranks."""
_EXPLAIN_SECONDS = 0.5
"""How long requests of an engine that is gone may wait for the reason."""


class Inbox:
    """Updates of one request that its reader has not taken yet."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._reader: asyncio.Future[None] | None = None
        self._error: LsvError | None = None

    def put(self, update: Update) -> None:
        self._updates.append(update)
        self._wake()

    def fail(self, error: LsvError) -> None:
        self._error = error
        self._wake()

    async def take(self) -> Sequence[Update]:
        """Wait for updates, merged into one for each candidate; raises the error that ended the engine."""
        if not self._updates and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._updates and self._error is not None:
            raise self._error
        updates, self._updates = self._updates, []
        return updates if len(updates) == 1 else merge_all(updates)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)


class SocketClient(ClientBase):
    """Talks to an engine process, watches it, and restarts it as often as the process allows.

    ``start`` and everything else must be called in one event loop.
    """

    def __init__(
        self,
        process: EngineProcess,
        tokenizer: Tokenizer,
        *,
        media: MediaService | None = None,
        plugins: Plugins | None = None,
    ) -> None:
        super().__init__(process.config, tokenizer, plugins=plugins)
        self.media = media
        self._process = process
        self._status = EngineStatus(state="loading", stage="starting")
        self._settled = asyncio.Event()
        """Set unless the engine is loading."""
        self._stats = Stats()
        self._inboxes: dict[int, Inbox] = {}
        self._orders: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._writer: asyncio.StreamWriter | None = None
        self._failure: LsvError | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect to the process, which is started if it does not run; returns while the model is loading."""
        if not self._process.running:
            self._process.start()
        self._task = asyncio.create_task(self._keep_connected())

    async def ready(self) -> Fit:
        """Wait until the engine can be used; raises the error its start failed with."""
        await self._settled.wait()
        if self._status.state != "ready" or self.fit is None:
            raise self._failure or EngineDied(self._status.error or "the engine has been stopped")
        return self.fit

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def failure(self) -> LsvError | None:
        """Why a dead engine died: the error it reported, where it could."""
        return self._failure if self._status.state == "dead" else None

    @property
    def stats(self) -> Stats:
        return self._stats

    async def generate(self, request: RequestSpec) -> AsyncGenerator[Chunk, None]:
        self._check_ready()
        check_media_size(request, _MOST_MEDIA)
        stream = self._open(request, time.monotonic())
        inbox = Inbox()
        try:
            async with shared_media(stream.submit) as submit:
                self._submit(submit, inbox)
                while not stream.finished:
                    updates, now = await inbox.take(), time.monotonic()
                    for update in updates:
                        chunk, finish = stream.take(update, now)
                        if finish is not None:
                            self._send(finish)
                        if chunk is not None:
                            yield chunk
        except LsvError:
            stream.fail()
            raise
        finally:
            self._unsubscribe(stream.submit.id, still_open=not stream.finished)
            self._report(*stream.records(time.monotonic()))

    async def encode(self, request: RequestSpec) -> list[Vector]:
        self._check_ready()
        submit = self._open_pooling(request)
        inbox, began, answers = Inbox(), time.monotonic(), dict[int, Update]()
        vectors: dict[int, Vector] = {}
        try:
            self._submit(submit, inbox)
            while len(vectors) < submit.spec.size:
                for update in await inbox.take():
                    if update.finish is not None:
                        answers[update.index] = update
                        vectors[update.index] = read_vector(update)
            return [vectors[index] for index in range(submit.spec.size)]
        finally:
            self._unsubscribe(submit.id, still_open=len(answers) < submit.spec.size)
            self._report_pooling(submit, answers, time.monotonic() - began)

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes of the engine."""
        self._check_ready()
        await self._send_order("reset_prefix_cache")

    async def close(self, *, drain: float = 0.0) -> None:
        self._closing = True
        if self._status.state == "ready":
            self._set_status(EngineStatus(state="draining"))
            if drain > 0:
                with suppress(TimeoutError, LsvError):
                    await asyncio.wait_for(self._send_order("drain"), drain)
        await asyncio.to_thread(self._process.stop)
        if self._task is not None:
            await self._task
        if self.media is not None:
            await self.media.close()
        if self._status.state != "dead":
            self._set_status(EngineStatus(state="dead", error="the engine has been stopped"))

    # Requests

    def _check_ready(self) -> None:
        status = self._status
        if status.state == "dead":
            raise EngineDied(f"the engine is gone: {status.error}")
        if status.state != "ready":
            raise Unavailable(f"the engine takes no requests now: {status.state} {status.stage}".rstrip())

    def _submit(self, submit: Submit, inbox: Inbox) -> None:
        self._inboxes[submit.id] = inbox
        self._send(submit)

    def _unsubscribe(self, id: int, *, still_open: bool) -> None:
        """Take no more updates of a request, and abort it if it is still open."""
        self._inboxes.pop(id, None)
        if still_open and self._writer is not None:
            self._send(Abort((id,)))

    async def _send_order(self, order: str) -> None:
        """Have the engine carry out an order; raises the error it was refused with, or ``EngineDied``."""
        number = next(self._numbers)
        done = self._orders[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(Control(number, order))
            await done
        finally:
            del self._orders[number]

    def _send(self, message: ClientMessage) -> None:
        if self._writer is None:
            raise EngineDied("the engine is gone")
        self._writer.write(encode_frame(message))

    # The connection

    def _set_status(self, status: EngineStatus) -> None:
        self._status = status
        if status.state == "loading":
            self._settled.clear()
        else:
            self._settled.set()

    async def _keep_connected(self) -> None:
        """Receive until the engine is gone; then fail open requests, and restart it if that is allowed."""
        while True:
            with suppress(OSError):
                await self._run_connection()
            self._writer = None
            error = await asyncio.to_thread(self._process.explain, _EXPLAIN_SECONDS)
            self._on_disconnect(self._failure or error)
            delay = None if self._closing or isinstance(error, StartError) else self._process.restart()
            if delay is None:
                return
            log.warning("starting the engine again in %g s", delay)
            self._set_status(EngineStatus(state="loading", stage="restarting"))
            self._failure = self.fit = None
            await asyncio.sleep(delay)
            if self._closing:
                return
            await asyncio.to_thread(self._process.end)
            self._process.start()

    async def _run_connection(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._process.address)
        try:
            self._send(Hello())
            frames: FrameReader[EngineMessage] = FrameReader(EngineMessage)
            while data := await reader.read(_READ):
                for message in frames.feed(data):
                    self._handle(message)
        finally:
            self._writer.close()
            if self._opening is not None:
                self._opening.cancel()

    def _handle(self, message: EngineMessage) -> None:
        if isinstance(message, Tokens):
            self._stats = message.stats
            for update in message.updates:
                inbox = self._inboxes.get(update.id)
                if inbox is not None:
                    inbox.put(update)
        elif isinstance(message, Progress):
            self._set_status(EngineStatus(state="loading", stage=message.stage, done=message.done, total=message.total))
        elif isinstance(message, Ready):
            self.fit = message.fit
            if self.media is None:
                self._set_status(EngineStatus(state="ready"))
            else:
                self.media.keep_off(message.fit.cores)
                self._set_status(EngineStatus(state="loading", stage="processor"))
                self._opening = asyncio.create_task(self._await_processor(self.media))
        elif isinstance(message, Failed):
            self._failure = from_record(message.error)
        elif isinstance(message, Controlled):
            self._answer_order(message)

    async def _await_processor(self, media: MediaService) -> None:
        """The engine is ready; the client is, too, once media can be prepared."""
        try:
            await media.ready()
        except LsvError as error:
            self._failure = error
            self._set_status(EngineStatus(state="dead", error=error.message))
        else:
            if self._status.state == "loading":
                self._set_status(EngineStatus(state="ready"))

    def _answer_order(self, message: Controlled) -> None:
        done = self._orders.get(message.id)
        if done is None or done.done():
            return
        if message.error is None:
            done.set_result(None)
        else:
            done.set_exception(from_record(message.error))

    def _on_disconnect(self, error: LsvError) -> None:
        """The engine is gone: fail everything open with the reason."""
        if self._closing:
            error = Unavailable("the engine has been stopped")
        else:
            log.error("the engine is gone: %s", error.message)
            self._failure = error
        self._set_status(EngineStatus(state="dead", error=error.message))
        for inbox in self._inboxes.values():
            inbox.fail(error if self._closing else EngineDied(error.message))
        for done in self._orders.values():
            if not done.done():
                done.set_exception(EngineDied(error.message))
