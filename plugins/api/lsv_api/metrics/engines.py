"""How engines are, read when Prometheus asks."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lsv.engine.client import Client
from lsv.engine.messages import STEP_TOKENS, Stats

_MODEL = ("model_name",)
_WINDOW = 10.0
"""Seconds over which the mean throughput is taken, at least."""

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
    ("vllm:kv_cache_usage_perc", "The same under its newer name.", lambda s: s.kv_usage),
    ("vllm:cpu_cache_usage_perc", "Share of a host KV cache in use; 0 without one.", lambda s: 0),
    (
        "vllm:gpu_prefix_cache_hit_rate",
        "Share of prompt tokens found in the prefix cache.",
        lambda s: _ratio(s),
    ),
    ("vllm:cpu_prefix_cache_hit_rate", "The same for a host prefix cache; 0 without one.", lambda s: 0),
    (
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_queries_total,
    ),
    ("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", lambda s: s.prefix_hits_total),
    (
        "vllm:admission_rejections_total",
        "Requests refused because the queue was full.",
        lambda s: s.rejections_total,
    ),
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


class EngineCollector(Collector):
    """Reads every engine's ``Stats`` when Prometheus asks."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        self._recent = {client.config.served_names[0]: Recent(client.stats, time.monotonic()) for client in clients}

    def collect(self) -> Iterable[Metric]:
        now = {client.config.served_names[0]: client.stats for client in self._clients}
        for name, text, value in _STATS:
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(name, text, labels=_MODEL)
            for model, stats in now.items():
                metric.add_metric((model,), value(stats))
            yield metric
        yield _waiting(now)
        yield _step_tokens(now)
        yield from self._throughput(now)
        yield _cache_config(self._clients)

    def _throughput(self, now: Mapping[str, Stats]) -> Iterator[Metric]:
        """Tokens per second of late; newer dashboards take the rate of the counters instead."""
        prompt = GaugeMetricFamily("vllm:avg_prompt_throughput_toks_per_s", "Prompt tokens/s.", labels=_MODEL)
        tokens = GaugeMetricFamily("vllm:avg_generation_throughput_toks_per_s", "Generated tokens/s.", labels=_MODEL)
        for model, stats in now.items():
            of_prompts, of_answers = self._recent[model].rates(stats, time.monotonic())
            prompt.add_metric((model,), of_prompts)
            tokens.add_metric((model,), of_answers)
        yield prompt
        yield tokens


class Recent:
    """An engine's totals of the last seconds. Whoever reads them, and how often, changes nothing for others."""

    def __init__(self, stats: Stats, now: float) -> None:
        self._seen = deque([(now, stats)])

    def rates(self, stats: Stats, now: float) -> tuple[float, float]:
        """Prompt and generated tokens per second, since the latest totals that are ``_WINDOW`` old or the first."""
        if stats.steps_total < self._seen[-1][1].steps_total:
            self._seen = deque([(now, Stats())])  # the engine has been started again
        if now - self._seen[-1][0] >= 1.0:
            self._seen.append((now, stats))
        while len(self._seen) > 1 and now - self._seen[1][0] >= _WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        seconds = max(now - since, 1.0)
        prompt = stats.prompt_tokens_total - before.prompt_tokens_total
        return prompt / seconds, (stats.generation_tokens_total - before.generation_tokens_total) / seconds


def _waiting(now: Mapping[str, Stats]) -> Metric:
    """Why requests wait: for room, or for blocks that another request computes."""
    metric = GaugeMetricFamily(
        "vllm:num_requests_waiting_by_reason",
        "Requests waiting for room (capacity), or for what another request computes (deferred).",
        labels=(*_MODEL, "reason"),
    )
    for model, stats in now.items():
        metric.add_metric((model, "capacity"), max(0, stats.waiting - stats.deferred))
        metric.add_metric((model, "deferred"), stats.deferred)
    return metric


def _step_tokens(now: Mapping[str, Stats]) -> Metric:
    metric = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens computed in a step.", labels=_MODEL)
    bounds = [*map(float, STEP_TOKENS), "+Inf"]
    for model, stats in now.items():
        counts = itertools.accumulate(stats.step_tokens or [0] * len(bounds))
        metric.add_metric(
            (model,), [(str(bound), count) for bound, count in zip(bounds, counts, strict=True)], stats.tokens_total
        )
    return metric


def _cache_config(clients: Sequence[Client]) -> Metric:
    """How caches were made, as labels of series that are always 1."""
    metric = GaugeMetricFamily(
        "vllm:cache_config_info",
        "How the KV cache was made.",
        labels=(*_MODEL, "block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks"),
    )
    for client in clients:
        config, fit = client.config, client.fit
        size, blocks = (config.block_size, 0) if fit is None else (fit.block_size, fit.num_blocks)
        told = (size, config.kv_dtype, config.prefix_caching, blocks)
        metric.add_metric((config.served_names[0], *map(str, told)), 1)
    return metric


def _ratio(stats: Stats) -> float:
    return stats.prefix_hits_total / stats.prefix_queries_total if stats.prefix_queries_total else 0.0
