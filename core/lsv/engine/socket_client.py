"""The client of an engine in another process: one connection carries all requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.admission import check_media_size
from lsv.engine.client import EngineStatus, Vector
from lsv.engine.client_base import ClientBase, read_vector
from lsv.engine.mailbox import Inbox
from lsv.engine.messages import (
    Abort,
    Adapters,
    Asleep,
    Beat,
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
from lsv.engine.orders.order import Drain, Order
from lsv.engine.sharing import shared_media
from lsv.engine.supervision import state as supervision
from lsv.engine.supervision.silence import Silence
from lsv.plugins import Plugins
from lsv.request.outputs import Chunk
from lsv.request.spec import RequestSpec
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import EngineDied, LsvError, Overloaded, Unavailable, from_record
from lsv_base.processes.orders import encode_order
from lsv_base.processes.wire import FrameReader, encode_frame

if TYPE_CHECKING:
    from lsv.media.service import MediaService

log = logging.getLogger(__name__)

_READ = 1 << 18
_MOST_UNSENT = 64 << 20
"""Bytes of requests that wait for an engine that does not read, beyond which new ones are refused."""
_EXPLAIN_SECONDS = 0.5
"""How long requests of an engine that is gone may wait for the reason."""
_POLL = 0.02
"""Seconds between looks at what has become of an engine that is gone."""
_LONGEST_PAUSE = 1.0
"""Seconds at most between attempts to reach an engine that runs."""


def _never(_: LsvError) -> bool:
    return False


class SocketClient(ClientBase):
    """Talks to the engine at ``address``, and to the one that its supervisor starts there in its place.

    ``start`` and everything else must be called in one event loop.
    """

    def __init__(
        self,
        config: EngineConfig,
        address: Path,
        tokenizer: Tokenizer,
        *,
        media: MediaService | None = None,
        plugins: Plugins | None = None,
    ) -> None:
        super().__init__(config, tokenizer, plugins=plugins)
        self.media, self.address = media, address
        self._status = EngineStatus(state="loading", stage="starting")
        self._watchers: list[Callable[[], None]] = []
        self._settled = asyncio.Event()
        """Set unless the engine is loading."""
        self._stats = Stats()
        self._inboxes: dict[int, Inbox] = {}
        self._orders: dict[int, asyncio.Future[None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._silence = Silence(config.load_timeout, config.beat_interval)
        self._failure: LsvError | None = None
        self.is_lost = False
        """Whether it is dead only until its machine is started anew."""
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._asleep: tuple[str, ...] = ()

    async def start(self) -> None:
        """Connect to the engine as soon as there is one; returns at once."""
        self._task = asyncio.create_task(self._keep_connected())

    async def ready(self) -> Fit:
        """Wait until the engine can be used; raises the error its start failed with."""
        await self._settled.wait()
        if self._status.state != "ready" or self.fit is None:
            raise self._failure or EngineDied(self._status.error or "the engine has been stopped")
        return self.fit

    @property
    def status(self) -> EngineStatus:
        silent = self._silence.missing if self._status.state == "ready" else 0.0
        return msgspec.structs.replace(self._status, silent=round(silent, 1)) if silent else self._status

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``status`` has changed. It must not block."""
        self._watchers.append(callback)

    @property
    def failure(self) -> LsvError | None:
        """Why a dead engine died: the error it reported, where it could."""
        return self._failure if self._status.state == "dead" else None

    @property
    def addresses(self) -> tuple[Path, ...]:
        """Where the engine listens, for further clients in other processes."""
        return (self.address,)

    @property
    def stats(self) -> Stats:
        return self._stats

    async def generate(
        self, request: RequestSpec, *, retried: Callable[[LsvError], bool] = _never
    ) -> AsyncGenerator[Chunk, None]:
        """See ``Client``. Where another engine is tried after an error, as ``retried`` says, nothing is reported."""
        self._check_ready()
        check_media_size(request.prompts)
        stream = self._open(request, time.monotonic())
        inbox, over = Inbox(), True
        try:
            async with shared_media(stream.submit, near=self.config.topology.is_local) as submit:
                self._submit(submit, inbox)
                while not stream.finished:
                    updates, now = await inbox.take(), time.monotonic()
                    for update in updates:
                        chunk, finish = stream.take(update, now)
                        if finish is not None:
                            self._send(finish)
                        if chunk is not None:
                            yield chunk
        except LsvError as error:
            stream.fail()
            over = not retried(error)
            raise
        finally:
            self._unsubscribe(stream.submit.id, still_open=not stream.finished)
            if over:
                self._report(stream.request, *stream.records(time.monotonic()))

    async def encode(self, request: RequestSpec, *, retried: Callable[[LsvError], bool] = _never) -> list[Vector]:
        self._check_ready()
        submit, over = self._open_pooling(request), True
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
        except LsvError as error:
            over = not retried(error)
            raise
        finally:
            self._unsubscribe(submit.id, still_open=len(answers) < submit.spec.size)
            if over:
                self._report_pooling(submit, answers, time.monotonic() - began)

    async def order(self, order: Order) -> None:
        """See ``Client``. After ``Drain`` the engine takes no requests ever again."""
        self._check_ready(or_asleep=order.while_asleep and not isinstance(order, Drain))
        if isinstance(order, Drain):
            self._set_status(EngineStatus(state="draining"))
        await self._send_order(order)

    async def close(self, *, drain: float = 0.0) -> None:
        """Leave the engine, which its supervisor stops; open requests get at most ``drain`` seconds to end."""
        self._closing = True
        if self._status.state == "ready":
            self._set_status(EngineStatus(state="draining"))
            if drain > 0:
                with suppress(TimeoutError, LsvError):
                    await asyncio.wait_for(self._send_order(Drain()), drain)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._status.state != "dead":
            self._set_status(EngineStatus(state="dead", error="the engine has been stopped"))
        self._fail_open(Unavailable("the engine has been stopped"))
        if self.media is not None:
            await self.media.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    # Requests

    def _check_ready(self, *, or_asleep: bool = False) -> None:
        status = self._status
        if status.state == "dead":
            raise EngineDied(f"the engine is gone: {status.error}")
        if status.state not in ("ready", "sleeping"):
            raise Unavailable(f"the engine takes no requests now: {status.state} {status.stage}".rstrip())
        if status.state == "sleeping" and not or_asleep:
            raise Unavailable(f"the engine sleeps ({status.stage}): wake it up with POST /wake_up first")

    def _submit(self, submit: Submit, inbox: Inbox) -> None:
        if self._writer is not None and self._writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            raise Overloaded("the engine is not keeping up with requests; try again later")
        self._inboxes[submit.id] = inbox
        self._send(submit)

    def _unsubscribe(self, id: int, *, still_open: bool) -> None:
        """Take no more updates of a request, and abort it if it is still open."""
        self._inboxes.pop(id, None)
        if still_open and self._writer is not None:
            self._send(Abort((id,)))

    async def _send_order(self, order: Order) -> None:
        """Raises the error that the order is refused with, or ``EngineDied``."""
        number = next(self._ids)
        done = self._orders[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(Control(number, *encode_order(order)))
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
        for callback in self._watchers:
            callback()

    async def _keep_connected(self) -> None:
        """Talk to one engine after the other until there will be no more."""
        try:
            pause = _POLL
            while (engine := supervision.read(self.address)).state != "ended":
                self._note_loss(engine)
                if engine.state == "running" and await self._talk_to(engine.run):
                    pause = _POLL
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE) if engine.state == "running" else _POLL
            self._end(engine.reason)
        except Exception as cause:
            log.exception("the client of the engine failed")
            self._end(EngineDied(f"the engine's client failed: {type(cause).__name__}: {cause}"))

    async def _talk_to(self, run: int) -> bool:
        """Use the engine until the connection ends, then fail open requests; whether it could be used."""
        self._failure = self.fit = None
        self._stats, self.adapters, self._asleep = Stats(), (), ()
        try:
            reader, self._writer = await asyncio.open_unix_connection(str(self.address))
        except OSError:
            return False  # it has just ended
        self._silence.end(self.config.load_timeout)
        tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._silence.wait_for_hang())]
        try:
            self._send(Hello())
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            lost = next(iter(done)).result()
        finally:
            for task in (*tasks, *([self._opening] if self._opening is not None else ())):
                task.cancel()
            self._writer.transport.abort()
            self._writer = None
        used = self.fit is not None
        await self._mourn(run, lost)
        return used

    async def _read(self, reader: asyncio.StreamReader) -> LsvError:
        """Take in what the engine says; why there is no more of it."""
        frames: FrameReader[EngineMessage] = FrameReader(EngineMessage)
        try:
            while data := await reader.read(_READ):
                self._silence.end()
                for message in frames.feed(data):
                    self._handle(message)
        except OSError as cause:
            return EngineDied(f"the connection to the engine broke: {cause}")
        except Exception as cause:  # whatever it is, nobody would read on
            log.exception("the connection to the engine failed")
            return EngineDied(f"the connection to the engine failed: {type(cause).__name__}: {cause}")
        return EngineDied("the engine closed its connections")

    async def _mourn(self, run: int, lost: LsvError) -> None:
        """The connection is lost: fail what is open with the reason, which the supervisor may know better."""
        ends = time.monotonic() + _EXPLAIN_SECONDS
        while (engine := supervision.read(self.address)).state == "running" and engine.run == run:
            if time.monotonic() > ends:
                break
            await asyncio.sleep(_POLL)
        error = self._failure or (lost if engine.error is None else from_record(engine.error))
        stage = "connecting" if engine.state == "running" and engine.run == run else "restarting"
        if engine.state == "ended":
            self._end(error)
        else:
            self._set_status(EngineStatus(state="loading", stage=stage, error=error.message))
            self._fail_open(error)

    def _note_loss(self, engine: supervision.Supervision) -> None:
        """The engine is lost, or no longer so."""
        before, self.is_lost = self.is_lost, engine.state == "lost"
        if self.is_lost and not before:
            self._end(engine.reason)
        elif before and not self.is_lost:
            self._set_status(EngineStatus(state="loading", stage="restarting", error=engine.reason.message))

    def _handle(self, message: EngineMessage) -> None:
        if isinstance(message, Tokens):
            self._stats = message.stats
            for update in message.updates:
                inbox = self._inboxes.get(update.id)
                if inbox is not None:
                    inbox.put(update)
        elif isinstance(message, Beat):
            self._silence.end(message.within, works=bool(message.stage))
        elif isinstance(message, Progress):
            loading = EngineStatus(state="loading", stage=message.stage, done=message.done, total=message.total)
            self._set_status(msgspec.structs.replace(loading, error=self._status.error))
        elif isinstance(message, Ready):
            self.fit = message.fit
            if self.media is None:
                self._set_status(self._status_of_ready())
            else:
                self.media.keep_off(message.fit.cores)
                loading = EngineStatus(state="loading", stage="processor")
                self._set_status(self._status_of_ready() if self._asleep else loading)
                self._opening = asyncio.create_task(self._await_processor(self.media))
        elif isinstance(message, Failed):
            self._failure = from_record(message.error)
        elif isinstance(message, Adapters):
            self.adapters = message.listed
        elif isinstance(message, Asleep):
            self._asleep = message.parts
            if self.fit is not None:
                self._set_status(self._status_of_ready())
        elif isinstance(message, Controlled):
            self._answer_order(message)

    def _status_of_ready(self) -> EngineStatus:
        """The status of an engine that has been loaded."""
        asleep = EngineStatus(state="sleeping", stage=", ".join(self._asleep))
        return asleep if self._asleep else EngineStatus(state="ready")

    async def _await_processor(self, media: MediaService) -> None:
        """The engine is ready; the client is, too, once media can be prepared."""
        try:
            await media.ready()
        except Exception as cause:
            error = cause if isinstance(cause, LsvError) else EngineDied(f"no media can be prepared: {cause!r}")
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

    def _end(self, error: LsvError) -> None:
        """There will be no other engine, or none before its machine is started anew."""
        self._failure = error
        self._set_status(EngineStatus(state="dead", error=error.message))
        self._fail_open(error)

    def _fail_open(self, error: LsvError) -> None:
        """Fail everything open with the reason."""
        for inbox in self._inboxes.values():
            inbox.fail(error if self._closing else EngineDied(error.message))
        for done in self._orders.values():
            if not done.done():
                done.set_exception(EngineDied(error.message))
