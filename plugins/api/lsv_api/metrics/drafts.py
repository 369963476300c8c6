"""What became of drafts, read when Prometheus asks; there is nothing to read where nothing is drafted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from lsv.engine.messages import Stats

_ENGINE = ("model_name", "engine")

# (name, help, value) of the counts of a model that drafts; names ending in _total are counters
_COUNTS = (
    ("vllm:spec_decode_num_drafts_total", "Rows of which drafts were verified.", lambda s: s.rows),
    ("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.", lambda s: s.drafts),
    ("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted.", lambda s: s.accepted),
    ("vllm:spec_decode_num_emitted_tokens_total", "Tokens that these rows gave.", lambda s: s.emitted),
    (
        "vllm:spec_decode_draft_acceptance_rate",
        "Share of draft tokens accepted.",
        lambda s: _share(s.accepted, s.drafts),
    ),
    (
        "vllm:spec_decode_efficiency",
        "Tokens that rows with drafts gave, of those they could have given.",
        lambda s: _share(s.emitted, s.drafts + s.rows),
    ),
)


def collect_drafts(now: Mapping[tuple[str, str], Stats]) -> Iterator[Metric]:
    """The series of the engines that draft."""
    drafting = {labels: stats.speculation for labels, stats in now.items() if stats.speculation is not None}
    if not drafting:
        return
    for name, text, value in _COUNTS:
        family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        metric = family(name, text, labels=_ENGINE)
        for labels, counts in drafting.items():
            metric.add_metric(labels, value(counts))
        yield metric
    places = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Draft tokens accepted, by their place behind the last token, from 0.",
        labels=(*_ENGINE, "position"),
    )
    for labels, counts in drafting.items():
        for place, accepted in enumerate(counts.by_place):
            places.add_metric((*labels, str(place)), accepted)
    yield places


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
