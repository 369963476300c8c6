"""What parts of the engine count, read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from lsv.engine.messages import Stats

_ENGINE = ("model_name", "engine")


def collect_parts(now: Mapping[tuple[str, str], Stats]) -> Iterator[Metric]:
    """A counter for each total of each part: ``lsv:quota_held_total``."""
    for name in sorted({name for stats in now.values() for name in stats.parts}):
        metric = CounterMetricFamily(f"lsv:{name}_total", "Counted by a part of the engine.", labels=_ENGINE)
        for labels, stats in now.items():
            metric.add_metric(labels, stats.parts.get(name, 0))
        yield metric
