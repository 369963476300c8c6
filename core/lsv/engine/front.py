"""What all clients share: the front door, open streams, and the records of those that ended."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence

from lsv.config import EngineConfig, Fit
from lsv.engine.admission import Door, make_pooling_submit, make_submits
from lsv.engine.messages import Submit, Update
from lsv.engine.stream import Stream
from lsv.errors import RequestFailed, from_record
from lsv.plugins import Plugins
from lsv.request.media import Media, Positions
from lsv.request.outputs import RequestRecord
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.request import FinishReason
from lsv.text.tokenizer import Tokenizer


class Front:
    """Opens and closes the requests of one client. ``fit`` is None until its engine is ready."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, plugins: Plugins | None = None) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.fit: Fit | None = None
        self._plugins = plugins
        self._callbacks: list[Callable[[RequestRecord], None]] = []
        self._ids = itertools.count()

    def on_finished(self, callback: Callable[[RequestRecord], None]) -> None:
        self._callbacks.append(callback)

    def open(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        now: float,
        media: tuple[Media, ...] = (),
        positions: Positions | None = None,
        priority: int = 0,
        salt: bytes = b"",
        trace: Mapping[str, str] | None = None,
    ) -> Stream:
        """A stream whose ``submits`` the engine must get. Raises ``BadRequest``."""
        checked, complete = self._door().complete(prompt, params, media=bool(media))
        submits = make_submits(
            [next(self._ids) for _ in range(complete.candidates)],
            checked,
            complete,
            self.tokenizer,
            name=request_id,
            media=media,
            positions=positions,
            priority=priority,
            salt=salt,
            trace=trace,
        )
        return Stream(request_id, self.config.served_names[0], submits, complete, self.tokenizer, now)

    def open_pooling(self, prompt: Sequence[int], params: PoolingParams, *, request_id: str) -> Submit:
        """The message for one vector. Raises ``BadRequest``."""
        return make_pooling_submit(
            next(self._ids), self._door().check_prompt(prompt, answer=0), params, name=request_id
        )

    def close(self, stream: Stream, now: float) -> None:
        """The request is over: tell those who asked to be told."""
        self._report(stream.record(now))

    def close_pooling(self, submit: Submit, update: Update | None, took: float) -> None:
        """A pooling request is over; ``update`` is the engine's answer, None when it was left before."""
        finish = FinishReason.ABORT if update is None or update.finish is None else update.finish
        self._report(
            RequestRecord(
                request_id=submit.name,
                model=self.config.served_names[0],
                prompt_tokens=len(submit.prompt),
                tokens=0,
                cached_tokens=(update.cached if update else None) or 0,
                finish=finish,
                n=1,
                best_of=1,
                max_tokens=0,
                queued=(update.queued if update else None) or 0.0,
                prefill=(update.prefill if update else None) or 0.0,
                ttft=None,
                e2e=took,
            )
        )

    def _door(self) -> Door:
        return Door.of(self.config, self.fit, self.tokenizer)

    def _report(self, record: RequestRecord) -> None:
        for callback in self._callbacks:
            callback(record)
        if self._plugins is not None:
            self._plugins.call("lsv_request_finished", record=record)


def read_vector(update: Update) -> tuple[float, ...]:
    """The vector of a finished pooling request; raises the error it failed with."""
    if update.vector is None:
        raise from_record(update.error) if update.error else RequestFailed("the request ended without a vector")
    return struct.unpack(f"<{len(update.vector) // 4}f", update.vector)
