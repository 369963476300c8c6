"""Prometheus metrics under the names vLLM's dashboards query, and some of our own under ``lsv:``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from lsv.engine.client import Client, Service
from lsv.engine.messages import Stats
from lsv.request.outputs import GAP_BOUNDS, Gaps, RequestRecord
from lsv.request.request import FinishReason

_MODEL = ("model_name",)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_LATENCY = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_PHASE = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, *_LATENCY, 120.0)
_CANDIDATES = (1.0, 2.0, 5.0, 10.0, 20.0)

# (name, help, value): read from the engine's Stats at each scrape. Names ending in _total are counters.
_STATS = (
    ("vllm:num_requests_running", "Requests the engine is computing.", lambda s: s.running),
    ("vllm:num_requests_waiting", "Requests waiting to be computed.", lambda s: s.waiting),
    (
        "vllm:num_requests_swapped",
        "Requests moved to host memory; always 0, preemption recomputes.",
        lambda s: 0,
    ),
    (
        "vllm:gpu_cache_usage_perc",
        "Share of the device's KV cache in use, 1 is all of it.",
        lambda s: s.kv_usage,
    ),
    ("vllm:cpu_cache_usage_perc", "Share of a host KV cache in use; 0 without one.", lambda s: 0),
    (
        "vllm:gpu_prefix_cache_hit_rate",
        "Share of prompt tokens found in the prefix cache.",
        lambda s: _ratio(s),
    ),
    ("vllm:cpu_prefix_cache_hit_rate", "The same for a host prefix cache; 0 without one.", lambda s: 0),
    ("vllm:num_preemptions_total", "Preemptions so far.", lambda s: s.preemptions_total),
    ("vllm:prompt_tokens_total", "Prompt tokens processed.", lambda s: s.prompt_tokens_total),
    ("vllm:generation_tokens_total", "Tokens generated.", lambda s: s.generation_tokens_total),
    (
        "vllm:spec_decode_draft_acceptance_rate",
        "Share of draft tokens accepted; 0 without a drafter.",
        lambda s: 0,
    ),
    (
        "vllm:spec_decode_efficiency",
        "Emitted tokens over the most possible; 0 without a drafter.",
        lambda s: 0,
    ),
    ("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted.", lambda s: 0),
    ("vllm:spec_decode_num_draft_tokens_total", "Draft tokens proposed.", lambda s: 0),
    ("vllm:spec_decode_num_emitted_tokens_total", "Tokens emitted by speculative steps.", lambda s: 0),
    ("lsv:failed_steps_total", "Steps that failed, with their requests.", lambda s: s.failed_steps_total),
    ("lsv:nonfinite_total", "Rows whose logits were not finite.", lambda s: s.nonfinite_total),
    ("lsv:unwarmed_steps_total", "Steps of a form that was not warmed up.", lambda s: s.unwarmed_total),
    ("lsv:steps_total", "Engine steps.", lambda s: s.steps_total),
    ("lsv:step_seconds_total", "Seconds spent in engine steps.", lambda s: s.step_seconds_total),
    ("lsv:model_seconds_total", "Seconds of them spent in the model.", lambda s: s.model_seconds_total),
    (
        "lsv:prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_queries_total,
    ),
    (
        "lsv:prefix_cache_hits_total",
        "Prompt tokens found in the prefix cache.",
        lambda s: s.prefix_hits_total,
    ),
)


class Metrics:
    """All metrics of one server, in a registry of its own. ``model_name`` is a model's first served name."""

    def __init__(self, service: Service, folder: str | None = None) -> None:
        """``folder`` is where several processes count together, if they do."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._shown = self._registry
        clients = tuple({id(client): client for client in service.clients.values()}.values())
        if folder is not None:
            self._shown = CollectorRegistry(auto_describe=False)
            MultiProcessCollector(self._shown, folder)
        self._shown.register(EngineCollector(clients))
        self._requests = RequestMetrics(self._registry, max(client.config.max_model_len for client in clients))
        self._http = Counter("lsv:http_requests", "HTTP requests.", ("route", "status"), registry=self._registry)
        for client in clients:
            self._requests.prepare(client.config.served_names[0])
            client.on_finished(self._requests.observe)

    def count_http(self, route: str, status: int) -> None:
        """Count a request; ``route`` is the pattern of a declared route, never what a client wrote."""
        self._http.labels(route, str(status)).inc()

    def text(self) -> bytes:
        """The exposition in Prometheus text format."""
        return generate_latest(self._shown)


class RequestMetrics:
    """What is learned from each request when it ends."""

    def __init__(self, registry: CollectorRegistry, max_model_len: int) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", text, _MODEL, buckets=buckets, registry=registry)

        lengths = buckets_1_2_5(max_model_len)
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self._itl = histogram("time_per_output_token_seconds", "Between two tokens of an answer.", GAP_BOUNDS)
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to the end of the answer.", _LATENCY)
        self._queue = histogram("request_queue_time_seconds", "Waiting to be computed.", _PHASE)
        self._prefill = histogram("request_prefill_time_seconds", "First planned to first token.", _PHASE)
        self._decode = histogram("request_decode_time_seconds", "First token to the end.", _PHASE)
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", lengths)
        self._tokens = histogram("request_generation_tokens", "Tokens generated for a request.", lengths)
        self._longest = histogram("request_max_num_generation_tokens", "Tokens of its longest answer.", lengths)
        self._n = histogram("request_params_n", "Answers asked for.", _CANDIDATES)
        self._best_of = histogram("request_params_best_of", "Candidates computed.", _CANDIDATES)
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
            self._ttft,
            self._itl,
            self._e2e,
            self._queue,
            self._prefill,
            self._decode,
            self._prompt,
        ):
            metric.labels(model)
        for metric in (self._tokens, self._longest, self._n, self._best_of):
            metric.labels(model)
        self._failures.labels(model)
        for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT):
            self._success.labels(model, reason.value)

    def observe(self, record: RequestRecord) -> None:
        model = record.model
        if record.finish is FinishReason.ERROR:
            self._failures.labels(model).inc()
            return
        self._success.labels(model, record.finish.value).inc()
        self._observe_times(record)
        self._prompt.labels(model).observe(record.prompt_tokens)
        self._tokens.labels(model).observe(record.tokens)
        self._longest.labels(model).observe(record.tokens if record.longest is None else record.longest)
        self._n.labels(model).observe(record.n)
        self._best_of.labels(model).observe(record.best_of)

    def _observe_times(self, record: RequestRecord) -> None:
        model = record.model
        self._e2e.labels(model).observe(record.e2e)
        self._queue.labels(model).observe(record.queued)
        add_gaps(self._itl, model, record.itl)
        if record.ttft is not None:
            self._ttft.labels(model).observe(record.ttft)
            self._prefill.labels(model).observe(record.prefill)
            self._decode.labels(model).observe(max(0.0, record.e2e - record.ttft))


def add_gaps(histogram: Histogram, model: str, gaps: Gaps) -> None:
    """Add ``Gaps``, which come counted by the histogram's own bounds."""
    shown: Any = histogram.labels(model)  # the library takes one value at a time: its cells are filled directly
    for cell, count in zip(shown._buckets, gaps.counts, strict=True):
        if count:
            cell.inc(count)
    shown._sum.inc(gaps.total)


class EngineCollector(Collector):
    """Reads every engine's ``Stats`` when Prometheus asks; keeps only the totals of the last scrape."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        self._last = {client.config.served_names[0]: (time.monotonic(), client.stats) for client in clients}

    def collect(self) -> Iterable[Metric]:
        now = {client.config.served_names[0]: client.stats for client in self._clients}
        for name, text, value in _STATS:
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(name, text, labels=_MODEL)
            for model, stats in now.items():
                metric.add_metric((model,), value(stats))
            yield metric
        yield from self._throughput(now)

    def _throughput(self, now: dict[str, Stats]) -> Iterator[Metric]:
        """Tokens per second since the last scrape; newer dashboards take the rate of the counters instead."""
        prompt = GaugeMetricFamily("vllm:avg_prompt_throughput_toks_per_s", "Prompt tokens/s.", labels=_MODEL)
        tokens = GaugeMetricFamily("vllm:avg_generation_throughput_toks_per_s", "Generated tokens/s.", labels=_MODEL)
        at = time.monotonic()
        for model, stats in now.items():
            since, before = self._last[model]
            seconds = max(at - since, 1e-3)
            prompt.add_metric((model,), (stats.prompt_tokens_total - before.prompt_tokens_total) / seconds)
            tokens.add_metric((model,), (stats.generation_tokens_total - before.generation_tokens_total) / seconds)
            self._last[model] = (at, stats)
        yield prompt
        yield tokens


def buckets_1_2_5(highest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to ``highest``."""
    found: list[float] = []
    scale = 1
    while scale <= highest:
        found.extend(float(step * scale) for step in (1, 2, 5) if step * scale <= highest)
        scale *= 10
    return tuple(found)


def _ratio(stats: Stats) -> float:
    return stats.prefix_hits_total / stats.prefix_queries_total if stats.prefix_queries_total else 0.0
