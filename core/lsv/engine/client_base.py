"""What all clients of an engine share: admission, opening requests, and reporting those that have ended."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.admission import Admission, make_submit
from lsv.engine.messages import Start, Submit, Update
from lsv.engine.stream import OutputStream
from lsv.plugins import Plugins
from lsv.plugins.grammars import find_backend
from lsv.plugins.logits_processors import check_processors, complete_processors
from lsv.request.adapter import Adapter
from lsv.request.outputs import RequestRecord, Timings
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import RequestFailed, from_record

if TYPE_CHECKING:
    from lsv.tracing.tracer import Tracer


class ClientBase:
    """The part of a client that does not depend on where its engine runs."""

    config: EngineConfig
    tokenizer: Tokenizer
    fit: Fit | None
    """None until the engine is ready."""
    adapters: tuple[Adapter, ...] = ()
    """Those that are served by names of their own."""
    _inline = False
    """Whether the engine is in this process."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, *, fit: Fit | None = None, plugins: Plugins | None = None
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.fit = fit
        self._plugins = plugins
        self._callbacks: list[Callable[[RequestRecord], None]] = []
        self._running: WeakSet[OutputStream] = WeakSet()
        self._ids = itertools.count()
        self._tracer = _open_tracer(config)

    @property
    def replicas(self) -> tuple[Self, ...]:
        """The engines behind this client, each by its own: this one."""
        return (self,)

    @property
    def admission(self) -> Admission:
        """What this engine's requests are checked against."""
        return Admission.of(self.config, self.fit, self.tokenizer)

    def on_finished(self, callback: Callable[[RequestRecord], None]) -> None:
        """Call ``callback`` once for each request of this client that ends, however it ends. It must not block."""
        self._callbacks.append(callback)

    def take_timings(self) -> list[Timings]:
        """What has happened of running requests since the last call; of those that end, their records have the rest."""
        return [timings for stream in list(self._running) for timings in stream.take_timings()]

    def _admit(self, request: RequestSpec) -> RequestSpec:
        admitted = self.admission.admit(request)
        params = admitted.sampling
        if params is not None and (params.logits_processors or params.extra_args or self.config.logits_processors):
            params = complete_processors(self.config, params, inline=self._inline)
            admitted = msgspec.structs.replace(admitted, sampling=params)
        if params is not None and params.logits_processors and self._plugins is not None:
            check_processors(self._plugins.catalog, params.logits_processors)
        if params is not None and params.structured_outputs is not None and self._plugins is not None:
            find_backend(self._plugins.catalog, params.structured_outputs.backend, self.config.grammars)
        return admitted

    def _open(self, request: RequestSpec, now: float) -> OutputStream:
        """A stream whose ``submit`` the engine must get. Raises ``BadRequest``."""
        admitted = self._admit(request)
        submit = make_submit(next(self._ids), admitted, self.tokenizer)
        model = self.config.served_names[0]
        stream = OutputStream(admitted, submit, model=model, tokenizer=self.tokenizer, now=now)
        self._running.add(stream)
        return stream

    def _open_pooling(self, request: RequestSpec) -> Submit:
        """The message for a vector of each prompt. Raises ``BadRequest``."""
        return make_submit(next(self._ids), self._admit(request), self.tokenizer)

    def _report(self, request: RequestSpec, *records: RequestRecord) -> None:
        """A request is over: tell callbacks, plugins and traces, of each of its prompts."""
        for record in records:
            if self._tracer is not None:
                self._tracer.tell(request, record)
            for callback in self._callbacks:
                callback(record)
            if self._plugins is not None:
                self._plugins.call("lsv_request_finished", record=record)

    def _report_pooling(self, submit: Submit, answers: Mapping[int, Update], seconds: float) -> None:
        """A pooling request is over; ``answers`` are the ends of its sequences, without those that were aborted."""
        self._report(
            submit.spec,
            *(
                self._pooling_record(submit.spec.request_id, len(prompt.ids), answers.get(index), seconds)
                for index, prompt in enumerate(submit.spec.prompts)
            ),
        )

    def _pooling_record(self, request_id: str, tokens: int, update: Update | None, seconds: float) -> RequestRecord:
        start = (update.start if update else None) or Start()
        return RequestRecord(
            request_id=request_id,
            model=self.config.served_names[0],
            prompt_tokens=tokens,
            tokens=0,
            cached_tokens=start.cached,
            finish=FinishReason.ABORT if update is None or update.finish is None else update.finish,
            n=1,
            best_of=1,
            max_tokens=0,
            queued=start.queued,
            prefill=start.prefill,
            ttft=None,
            e2e=seconds,
        )


def _open_tracer(config: EngineConfig) -> Tracer | None:
    if config.traces is None:
        return None
    from lsv.tracing.tracer import Tracer  # which imports OpenTelemetry

    return Tracer.to(config.traces)


def read_vector(update: Update) -> tuple[float, ...]:
    """The vector of a finished pooling request; raises the error it failed with."""
    if update.vector is None:
        raise from_record(update.error) if update.error else RequestFailed("the request ended without a vector")
    return struct.unpack(f"<{len(update.vector) // 4}f", update.vector)
