"""Histograms and counters of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from lsv.request.outputs import GAP_BOUNDS, Gaps, RequestRecord, Timings
from lsv.request.request import FinishReason

_MODEL = ("model_name",)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_LATENCY = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_PHASE = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, *_LATENCY, 120.0)
_CANDIDATES = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTIONS = (0.0, 1.0, 2.0, 5.0, 10.0)


class RequestMetrics:
    """Metrics of each request, counted while it runs and when it ends."""

    def __init__(self, registry: CollectorRegistry, max_model_len: int) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", text, _MODEL, buckets=buckets, registry=registry)

        lengths = buckets_1_2_5(max_model_len)
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self._itl = (
            histogram("inter_token_latency_seconds", "Between two tokens of an answer.", GAP_BOUNDS),
            histogram("time_per_output_token_seconds", "The same under its older name.", GAP_BOUNDS),
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to the end of the answer.", _LATENCY)
        self._queue = histogram("request_queue_time_seconds", "Waiting to be computed.", _PHASE)
        self._prefill = histogram("request_prefill_time_seconds", "First planned to first token.", _PHASE)
        self._decode = histogram("request_decode_time_seconds", "First token to the end.", _PHASE)
        self._inference = histogram("request_inference_time_seconds", "First planned to the end.", _PHASE)
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", lengths)
        self._tokens = histogram("request_generation_tokens", "Tokens generated for a request.", lengths)
        self._longest = histogram("request_max_num_generation_tokens", "Tokens of its longest answer.", lengths)
        self._n = histogram("request_params_n", "Answers asked for.", _CANDIDATES)
        self._best_of = histogram("request_params_best_of", "Candidates computed.", _CANDIDATES)
        self._max_tokens = histogram("request_params_max_tokens", "Longest answer allowed.", lengths)
        self._preemptions = histogram("request_num_preemptions", "Preemptions of a request.", _PREEMPTIONS)
        self._success = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*_MODEL, "finished_reason"),
            registry=registry,
        )
        self._failures = Counter("lsv:request_failures", "Requests the engine failed.", _MODEL, registry=registry)

    def prepare(self, model: str) -> None:
        """Create a model's series at zero, so that rates are right from the first request on."""
        for metric in (
            self._ttft, *self._itl, self._e2e, self._queue, self._prefill, self._decode, self._inference, self._prompt,
            self._tokens, self._longest, self._n, self._best_of, self._max_tokens, self._preemptions,
        ):  # fmt: skip
            metric.labels(model)
        self._failures.labels(model)
        for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.REPETITION):
            self._success.labels(model, reason.value)

    def observe(self, record: RequestRecord) -> None:
        model = record.model
        if record.finish is FinishReason.ERROR:
            self.observe_timings(model, record.fresh)
            self._failures.labels(model).inc()
            return
        self._success.labels(model, record.finish.value).inc()
        self._observe_times(record)
        self._prompt.labels(model).observe(record.prompt_tokens)
        self._tokens.labels(model).observe(record.tokens)
        self._longest.labels(model).observe(record.tokens if record.longest is None else record.longest)
        self._n.labels(model).observe(record.n)
        self._best_of.labels(model).observe(record.best_of)
        self._max_tokens.labels(model).observe(record.max_tokens)
        self._preemptions.labels(model).observe(record.preemptions)

    def observe_timings(self, model: str, timings: Timings) -> None:
        """Count times to first token and between tokens as they happen."""
        if timings.ttft is not None:
            self._ttft.labels(model).observe(timings.ttft)
        for histogram in self._itl:
            add_gaps(histogram, model, timings.itl)

    def _observe_times(self, record: RequestRecord) -> None:
        model = record.model
        self._e2e.labels(model).observe(record.e2e)
        self._queue.labels(model).observe(record.queued)
        self.observe_timings(model, record.fresh)
        if record.ttft is not None:
            self._prefill.labels(model).observe(record.prefill)
            self._inference.labels(model).observe(max(0.0, record.e2e - record.queued))
            self._decode.labels(model).observe(max(0.0, record.e2e - record.ttft))


def add_gaps(histogram: Histogram, model: str, gaps: Gaps) -> None:
    """Add ``Gaps``, which come counted by the histogram's own bounds."""
    shown: Any = histogram.labels(model)  # the library takes one value at a time: its cells are filled directly
    for cell, count in zip(shown._buckets, gaps.counts, strict=True):
        if count:
            cell.inc(count)
    shown._sum.inc(gaps.total)


def buckets_1_2_5(highest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to ``highest``."""
    found: list[float] = []
    scale = 1
    while scale <= highest:
        found.extend(float(step * scale) for step in (1, 2, 5) if step * scale <= highest)
        scale *= 10
    return tuple(found)
