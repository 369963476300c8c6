"""The dashboard's contents: cards for the present moment, plots of the last minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lsv_webui.dashboard.metrics import Histogram, Sample
from lsv_webui.dashboard.plots import plot

SHOWN = 90
SPAN = "3 minutes"
"""Samples on a plot, and how long that is."""

WINDOW = 5
"""Samples over which rates and latencies are computed."""


def draw(samples: Sequence[Sample]) -> str:
    """The dashboard as HTML, oldest sample first."""
    now = samples[-1] if samples else Sample(at=0.0)
    writing, reading = rates(samples, lambda s: s.tokens), rates(samples, lambda s: s.prompt_tokens)
    ttft, itl = latencies(samples, lambda s: s.ttft), latencies(samples, lambda s: s.itl)
    running, waiting = (_padded([getattr(sample, name) for sample in samples]) for name in ("running", "waiting"))
    cards = (
        _card("Running", f"{now.running:g}", "request" if now.running == 1 else "requests"),
        _card("Waiting", f"{now.waiting:g}", "request" if now.waiting == 1 else "requests"),
        _card("KV cache", f"{100 * now.kv:.1f}", "% in use", share=now.kv),
        _card("Throughput", f"{(writing[-1] if writing else None) or 0:,.0f}", "tokens/s"),
    )
    drawn = (
        ("Throughput", (("written", _padded(writing)), ("read", _padded(reading))), _per_second, 10),
        ("Requests", (("running", running), ("waiting", waiting)), _count, 4),
        ("Time to first token", (("mean", _padded(ttft[0])), ("p95", _padded(ttft[1]))), _milliseconds, 0.05),
        ("Time between tokens", (("mean", _padded(itl[0])), ("p95", _padded(itl[1]))), _milliseconds, 0.02),
    )
    plots = [plot(title, lines, form, since=SPAN, top=top) for title, lines, form, top in drawn]
    return f'<div class="lsv-cards">{"".join(cards)}</div><div class="lsv-plots">{"".join(plots)}</div>'


def rates(samples: Sequence[Sample], count: Callable[[Sample], float]) -> list[float | None]:
    """Growth per second of a count over the window before each sample."""
    return [
        max(0.0, count(now) - count(before)) / (now.at - before.at) if now.at > before.at else None
        for before, now in _windows(samples)
    ]


def latencies(
    samples: Sequence[Sample], histogram: Callable[[Sample], Histogram]
) -> tuple[list[float | None], list[float | None]]:
    """Mean and 95th percentile (seconds) over the window before each sample; None where nothing was observed."""
    seen = [histogram(now).since(histogram(before)) for before, now in _windows(samples)]
    return [one.mean() for one in seen], [one.quantile(0.95) for one in seen]


def _windows(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    return [(samples[max(0, index - WINDOW)], now) for index, now in enumerate(samples)]


def _padded(values: Sequence[float | None]) -> list[float | None]:
    """Padded to as many values as a plot shows, so that the time scale is the same from the start."""
    return [*[None] * (SHOWN - len(values)), *values]


def _card(title: str, value: str, unit: str, share: float | None = None) -> str:
    meter = "" if share is None else f'<div class="meter"><i style="width:{min(100.0, 100 * share):.1f}%"></i></div>'
    return f'<div class="lsv-card"><h3>{title}</h3><p><b>{value}</b> {unit}</p>{meter}</div>'


def _per_second(value: float) -> str:
    return f"{value:,.0f}/s"


def _count(value: float) -> str:
    return f"{value:g}"


def _milliseconds(value: float) -> str:
    return f"{1000 * value:,.0f} ms" if value < 1 else f"{value:,.1f} s"
