"""The client of an engine in this very process, stepped by hand: for offline work and own loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from lsv.config import Fit
from lsv.engine.engine import Engine
from lsv.engine.front import Front
from lsv.engine.messages import Stats, Submit, Update
from lsv.engine.stream import Stream
from lsv.errors import EngineDied, LsvError
from lsv.plugins import Plugins
from lsv.request.media import Media, Positions
from lsv.request.outputs import Chunk, RequestRecord
from lsv.request.params import PoolingParams, SamplingParams
from lsv.text.tokenizer import Tokenizer


class News(msgspec.Struct, frozen=True):
    """What a step brought for one request: a chunk, the end of a pooling request, or the error it failed with."""

    request_id: str
    chunk: Chunk | None = None
    pooled: Update | None = None
    error: LsvError | None = None


class InlineClient:
    """Adds requests to an engine that has been started, and turns its steps into chunks."""

    def __init__(
        self,
        engine: Engine[None],
        tokenizer: Tokenizer,
        fit: Fit,
        *,
        plugins: Plugins | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = engine.config
        self.tokenizer = tokenizer
        self.fit = fit
        self._engine = engine
        self._front = Front(engine.config, tokenizer, plugins)
        self._front.fit = fit
        self._now = now
        self._streams: dict[str, Stream] = {}
        self._pooling: dict[int, tuple[Submit, float]] = {}
        self._by_id: dict[int, Stream] = {}

    @property
    def stats(self) -> Stats:
        return self._engine.stats

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The ids of the requests that have not ended."""
        return (*self._streams, *(submit.name for submit, _ in self._pooling.values()))

    def on_finished(self, callback: Callable[[RequestRecord], None]) -> None:
        self._front.on_finished(callback)

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        media: tuple[Media, ...] = (),
        positions: Positions | None = None,
        priority: int = 0,
        salt: bytes = b"",
    ) -> None:
        """Queue a request. Raises ``BadRequest`` or ``Overloaded``, and then nothing of it is queued."""
        assert request_id not in self._streams, f"request {request_id} is under way"
        stream = self._front.open(
            prompt,
            params,
            request_id=request_id,
            now=self._now(),
            media=media,
            positions=positions,
            priority=priority,
            salt=salt,
        )
        try:
            for submit in stream.submits:
                self._engine.submit(None, submit)
        except LsvError:
            self._engine.abort(None, [submit.id for submit in stream.submits])
            raise
        self._streams[request_id] = stream
        self._by_id |= dict.fromkeys((submit.id for submit in stream.submits), stream)

    def add_pooling(self, request_id: str, prompt: Sequence[int], params: PoolingParams) -> None:
        """Queue a request for one vector. Raises ``BadRequest`` or ``Overloaded``."""
        submit = self._front.open_pooling(prompt, params, request_id=request_id)
        self._engine.submit(None, submit)
        self._pooling[submit.id] = (submit, self._now())

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests; ids that are not known are passed over."""
        wanted = set(request_ids)
        for name in wanted & self._streams.keys():
            stream = self._streams[name]
            self._engine.abort(None, stream.open_ids)
            self._close(stream)
        for id in [id for id, (submit, _) in self._pooling.items() if submit.name in wanted]:
            self._engine.abort(None, (id,))
            self._close_pooling(id, None)

    def step(self) -> list[News]:
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
        return [news for news in found if news is not None]

    def reset_prefix_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """End everything and let go of the model."""
        self.abort(self.unfinished)
        self._engine.close()

    def _take(self, update: Update) -> News | None:
        if update.id in self._pooling:
            name = self._pooling[update.id][0].name
            self._close_pooling(update.id, update)
            return News(name, pooled=update)
        stream = self._by_id.get(update.id)
        if stream is None:
            return None  # a sibling's failure has ended the request in this very step
        try:
            chunk, finish = stream.take(update, self._now())
        except LsvError as error:
            self._engine.abort(None, stream.open_ids)
            self._close(stream)
            return News(stream.request_id, error=error)
        if finish is not None:
            self._engine.finish(None, finish)
        if stream.finished:
            self._close(stream)
        return News(stream.request_id, chunk) if chunk is not None else None

    def _close(self, stream: Stream) -> None:
        del self._streams[stream.request_id]
        for submit in stream.submits:
            del self._by_id[submit.id]
        self._front.close(stream, self._now())

    def _close_pooling(self, id: int, update: Update | None) -> None:
        submit, began = self._pooling.pop(id)
        self._front.close_pooling(submit, update, self._now() - began)
