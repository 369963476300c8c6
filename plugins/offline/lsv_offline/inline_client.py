"""The client of an engine in this very process, stepped by hand: for offline work and own loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from lsv.config import Fit
from lsv.engine.client_base import ClientBase
from lsv.engine.engine import Engine
from lsv.engine.executor import Executor
from lsv.engine.messages import Adapters, Asleep, Stats, Submit, Update
from lsv.engine.orders.order import Order
from lsv.engine.stream import OutputStream
from lsv.plugins import Plugins
from lsv.request.outputs import Chunk
from lsv.request.spec import RequestSpec
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest, EngineDied, LsvError

_PAUSE = 0.001
"""Seconds between looks at what an order has begun."""


class StepOutput(msgspec.Struct, frozen=True):
    """What a step brought for one request."""

    request_id: str
    """The request."""

    chunk: Chunk | None = None
    """More of its answers."""

    pooled: Update | None = None
    """The end of a pooling request."""

    error: LsvError | None = None
    """Why it failed; it is over then."""


class InlineClient(ClientBase):
    """Adds requests to an engine that has been started, and turns its steps into chunks."""

    fit: Fit
    _inline = True

    def __init__(
        self,
        engine: Engine[None],
        tokenizer: Tokenizer,
        fit: Fit,
        *,
        plugins: Plugins | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine.config, tokenizer, fit=fit, plugins=plugins)
        self.asleep: tuple[str, ...] = ()
        """The parts of its memory that the engine has given back."""
        self._engine = engine
        self._take_notices()
        self._now = now
        self._streams: dict[str, OutputStream] = {}
        self._pooling: dict[int, tuple[Submit, float]] = {}
        self._by_id: dict[int, OutputStream] = {}

    @property
    def stats(self) -> Stats:
        return self._engine.stats

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The ids of the requests that have not ended."""
        return (*self._streams, *(submit.spec.request_id for submit, _ in self._pooling.values()))

    def add(self, request: RequestSpec, arrival: float | None = None) -> RequestSpec:
        """Queue a request of one prompt, and give it as it was admitted; its times count from ``arrival``.

        Raises ``BadRequest`` or ``Overloaded``, and then nothing of it is queued.
        """
        assert len(request.prompts) == 1, "each prompt is a request of its own here"
        assert request.request_id not in self._streams, f"request {request.request_id} is running"
        arrival = self._now() if arrival is None else arrival
        if request.pooling is not None:
            return self._add_pooling(request, arrival)
        stream = self._open(request, arrival)
        self._engine.submit(None, stream.submit)
        self._streams[request.request_id] = stream
        self._by_id[stream.submit.id] = stream
        return stream.request

    def _add_pooling(self, request: RequestSpec, arrival: float) -> RequestSpec:
        submit = self._open_pooling(request)
        self._engine.submit(None, submit)
        self._pooling[submit.id] = (submit, arrival)
        return submit.spec

    def abort(self, request_ids: Iterable[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        wanted = set(request_ids)
        for name in wanted & self._streams.keys():
            stream = self._streams[name]
            self._engine.abort(None, (stream.submit.id,))
            self._close(stream)
        for id in [id for id, (submit, _) in self._pooling.items() if submit.spec.request_id in wanted]:
            self._engine.abort(None, (id,))
            self._close_pooling(id, None)

    def step(self) -> list[StepOutput]:
        """One step of the engine. Raises ``EngineDied``; everything has ended then."""
        try:
            updates = self._engine.step().get(None, [])
        except EngineDied:
            for stream in tuple(self._streams.values()):
                stream.fail()
                self._close(stream)
            for id in tuple(self._pooling):
                self._close_pooling(id, None)
            raise
        found = [self._take(update) for update in updates]
        return [output for output in found if output is not None]

    def order(self, order: Order) -> None:
        """Carry out an order, without steps. Requests that it ends fail with the next step.

        Raises the error that the order is refused with, and ``BadRequest`` for one that waits for running requests.
        """
        engine = self._engine
        handler = engine.orders.find(order)
        engine.parts.check_order(order)
        handler.accept(order)
        if order.when_idle and engine.unfinished:  # its mode asks for that
            raise BadRequest(f"mode: {engine.unfinished} requests are under way: step until they end", param="mode")
        ending = handler.carry_out(order)
        while ending is not None and not ending.done():
            engine.advance()
            time.sleep(_PAUSE)
        self._take_notices()
        if ending is not None:
            ending.result()

    def watch(self, around: Callable[[Executor], Executor]) -> None:
        """Put something around the engine's executor, or take it away again."""
        self._engine.watch(around)

    def close(self) -> None:
        """End everything and let go of the model, once what was computed last is kept behind the device."""
        self.abort(self.unfinished)
        with suppress(EngineDied):
            while self._engine.failure is None and self._engine.has_work and not self._engine.stalled:
                self._engine.step()
        self._engine.close()
        if self._tracer is not None:
            self._tracer.close()

    def _take_notices(self) -> None:
        for notice in self._engine.parts.notices:
            if isinstance(notice, Adapters):
                self.adapters = notice.listed
            elif isinstance(notice, Asleep):
                self.asleep = notice.parts

    def _take(self, update: Update) -> StepOutput | None:
        if update.id in self._pooling:
            name = self._pooling[update.id][0].spec.request_id
            self._close_pooling(update.id, update)
            return StepOutput(name, pooled=update)
        stream = self._by_id.get(update.id)
        if stream is None:
            return None  # a sibling's failure has ended the request in this very step
        try:
            chunk, finish = stream.take(update, self._now())
        except LsvError as error:
            self._engine.abort(None, (stream.submit.id,))
            self._close(stream)
            return StepOutput(stream.request_id, error=error)
        if finish is not None:
            self._engine.finish(None, finish)
        if stream.finished:
            self._close(stream)
        return StepOutput(stream.request_id, chunk) if chunk is not None and chunk.grows else None

    def _close(self, stream: OutputStream) -> None:
        del self._streams[stream.request_id]
        del self._by_id[stream.submit.id]
        self._report(stream.request, *stream.records(self._now()))

    def _close_pooling(self, id: int, update: Update | None) -> None:
        submit, began = self._pooling.pop(id)
        self._report_pooling(submit, {} if update is None else {0: update}, self._now() - began)
