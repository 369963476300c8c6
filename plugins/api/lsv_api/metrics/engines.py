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
from lsv_api.metrics.adapters import collect_adapters
from lsv_api.metrics.drafts import collect_drafts
from lsv_api.metrics.experts import collect_experts
from lsv_api.metrics.parts import collect_parts

ENGINE = ("model_name", "engine")
"""The labels of an engine: its model, and its number among the replicas of that."""
Labels = tuple[str, str]
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
    (
        "vllm:cpu_cache_usage_perc",
        "Share of the host memory behind the KV cache in use; 0 without any.",
        lambda s: s.offload.usage if s.offload else 0,
    ),
    (
        "vllm:gpu_prefix_cache_hit_rate",
        "Share of prompt tokens found in the prefix cache.",
        lambda s: _ratio(s),
    ),
    (
        "vllm:cpu_prefix_cache_hit_rate",
        "Share of the others found behind the device; 0 where nothing is.",
        lambda s: s.offload.hits / s.offload.queries if s.offload and s.offload.queries else 0,
    ),
    (
        "vllm:external_prefix_cache_queries_total",
        "Prompt tokens that the device did not hold, looked up behind it.",
        lambda s: s.offload.queries if s.offload else 0,
    ),
    (
        "vllm:external_prefix_cache_hits_total",
        "Prompt tokens found behind the device.",
        lambda s: s.offload.hits if s.offload else 0,
    ),
    (
        "lsv:kv_transfers_total",
        "Requests for which other engines were asked for KV cache.",
        lambda s: s.offload.transfers if s.offload else 0,
    ),
    (
        "lsv:kv_transfers_failed_total",
        "Those of them whose prompts were computed here all the same, in whole or in part.",
        lambda s: s.offload.failed_transfers if s.offload else 0,
    ),
    (
        "lsv:kv_transferred_bytes_total",
        "Bytes of KV cache that came from other engines.",
        lambda s: s.offload.transferred_bytes if s.offload else 0,
    ),
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
        self._engines = {_labels(replica): replica for client in clients for replica in client.replicas}
        now = time.monotonic()
        self._recent = {labels: Recent(engine.stats, now) for labels, engine in self._engines.items()}

    def collect(self) -> Iterable[Metric]:
        now = {labels: engine.stats for labels, engine in self._engines.items()}
        for name, text, value in _STATS:
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(name, text, labels=ENGINE)
            for labels, stats in now.items():
                metric.add_metric(labels, value(stats))
            yield metric
        yield _waiting(now)
        yield _step_tokens(now)
        yield from collect_drafts(now)
        yield from collect_adapters(self._engines)
        yield from collect_experts(now)
        yield from collect_parts(now)
        yield from self._throughput(now)
        yield _cache_config(self._engines)

    def _throughput(self, now: Mapping[Labels, Stats]) -> Iterator[Metric]:
        """Tokens per second of late; newer dashboards take the rate of the counters instead."""
        prompt = GaugeMetricFamily("vllm:avg_prompt_throughput_toks_per_s", "Prompt tokens/s.", labels=ENGINE)
        tokens = GaugeMetricFamily("vllm:avg_generation_throughput_toks_per_s", "Generated tokens/s.", labels=ENGINE)
        for labels, stats in now.items():
            of_prompts, of_answers = self._recent[labels].rates(stats, time.monotonic())
            prompt.add_metric(labels, of_prompts)
            tokens.add_metric(labels, of_answers)
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


def _labels(engine: Client) -> Labels:
    return engine.config.served_names[0], str(engine.config.topology.number)


def _waiting(now: Mapping[Labels, Stats]) -> Metric:
    """Why requests wait: for room, or for blocks that another request computes."""
    metric = GaugeMetricFamily(
        "vllm:num_requests_waiting_by_reason",
        "Requests waiting for room (capacity), or for what another request computes (deferred).",
        labels=(*ENGINE, "reason"),
    )
    for labels, stats in now.items():
        metric.add_metric((*labels, "capacity"), max(0, stats.waiting - stats.deferred))
        metric.add_metric((*labels, "deferred"), stats.deferred)
    return metric


def _step_tokens(now: Mapping[Labels, Stats]) -> Metric:
    metric = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens computed in a step.", labels=ENGINE)
    bounds = [*map(float, STEP_TOKENS), "+Inf"]
    for labels, stats in now.items():
        counts = itertools.accumulate(stats.step_tokens or [0] * len(bounds))
        metric.add_metric(
            labels, [(str(bound), count) for bound, count in zip(bounds, counts, strict=True)], stats.tokens_total
        )
    return metric


def _cache_config(engines: Mapping[Labels, Client]) -> Metric:
    """How caches were made, as labels of series that are always 1."""
    metric = GaugeMetricFamily(
        "vllm:cache_config_info",
        "How the KV cache was made.",
        labels=(*ENGINE, "block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks"),
    )
    for labels, client in engines.items():
        config, fit = client.config, client.fit
        size, blocks = (config.block_size, 0) if fit is None else (fit.block_size, fit.num_blocks)
        told = (size, config.kv_dtype, config.prefix_caching, blocks)
        metric.add_metric((*labels, *map(str, told)), 1)
    return metric


def _ratio(stats: Stats) -> float:
    return stats.prefix_hits_total / stats.prefix_queries_total if stats.prefix_queries_total else 0.0
