"""How evenly ranks that share experts are loaded, read when Prometheus asks; nothing where experts stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from lsv.engine.messages import Stats

_ENGINE = ("model_name", "engine")


def collect_experts(now: Mapping[tuple[str, str], Stats]) -> Iterator[Metric]:
    """The series of the engines whose experts move."""
    moving = {labels: stats.experts for labels, stats in now.items() if stats.experts is not None}
    if not moving:
        return
    balance = GaugeMetricFamily(
        "lsv:expert_balance",
        "A rank's mean load of tokens as a share of the fullest rank's: as measured last, and as the same tokens would "
        "have made it once experts had moved (expected). 0 before the first time.",
        labels=(*_ENGINE, "placement"),
    )
    moved = CounterMetricFamily("lsv:experts_moved_total", "Experts that have changed ranks.", labels=_ENGINE)
    times = CounterMetricFamily("lsv:expert_balancings_total", "Times the balance was measured.", labels=_ENGINE)
    for labels, counts in moving.items():
        balance.add_metric((*labels, "measured"), counts.measured)
        balance.add_metric((*labels, "expected"), counts.expected)
        moved.add_metric(labels, counts.moved_total)
        times.add_metric(labels, counts.balanced_total)
    yield from (balance, moved, times)
