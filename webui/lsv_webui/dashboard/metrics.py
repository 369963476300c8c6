"""A server's metrics at one moment, read from the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_KV = "vllm:gpu_cache_usage_perc"
_PROMPT, _TOKENS = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
_TTFT, _ITL = "vllm:time_to_first_token_seconds", "vllm:time_per_output_token_seconds"


class Histogram(msgspec.Struct, frozen=True):
    """Observations up to each bound (seconds), and their sum; ``counts`` are cumulative, the last bound is infinite."""

    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    total: float = 0.0

    def since(self, before: Histogram) -> Histogram:
        """The observations after ``before``; all of them if the server was restarted in between."""
        if self.bounds != before.bounds:
            return self
        grown = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return self if min(grown, default=0.0) < 0 else Histogram(self.bounds, grown, self.total - before.total)

    def mean(self) -> float | None:
        """Seconds; None without observations."""
        return self.total / self.counts[-1] if self.counts and self.counts[-1] else None

    def quantile(self, q: float) -> float | None:
        """Seconds below which the share ``q`` lies, interpolated within its bucket; None without observations."""
        if not self.counts or not self.counts[-1]:
            return None
        rank, lower, below = q * self.counts[-1], 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank:
                if bound == float("inf"):
                    return lower
                return lower + (bound - lower) * ((rank - below) / (count - below) if count > below else 1.0)
            lower, below = bound, count
        return lower


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics at time ``at`` (seconds of a monotonic clock), summed over the models; ``kv`` is the maximum.

    ``prompt_tokens`` and ``tokens`` are totals.
    """

    at: float
    running: float = 0
    waiting: float = 0
    kv: float = 0
    prompt_tokens: float = 0
    tokens: float = 0
    ttft: Histogram = Histogram()
    itl: Histogram = Histogram()


def read_metrics(text: str, at: float) -> Sample:
    """A sample from an exposition; missing metrics count as zero."""
    found: dict[str, list[float]] = {}
    buckets: dict[str, dict[float, float]] = {_TTFT: {}, _ITL: {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_bucket") and family.name in buckets:
                bound, counts = float(sample.labels["le"]), buckets[family.name]
                counts[bound] = counts.get(bound, 0.0) + sample.value
            else:
                found.setdefault(sample.name, []).append(sample.value)
    return Sample(
        at=at,
        running=sum(found.get(_RUNNING, ())),
        waiting=sum(found.get(_WAITING, ())),
        kv=max(found.get(_KV, (0.0,))),
        prompt_tokens=sum(found.get(_PROMPT, ())),
        tokens=sum(found.get(_TOKENS, ())),
        ttft=_histogram(buckets[_TTFT], found.get(f"{_TTFT}_sum", ())),
        itl=_histogram(buckets[_ITL], found.get(f"{_ITL}_sum", ())),
    )


def _histogram(counts: Mapping[float, float], sums: Iterable[float]) -> Histogram:
    bounds = tuple(sorted(counts))
    return Histogram(bounds, tuple(counts[bound] for bound in bounds), sum(sums))
