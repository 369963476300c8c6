"""Which charts a result makes, apart from how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lsv_base.errors import ConfigError
from lsv_bench.figures import Figures, split
from lsv_bench.result import Point, Result, label

_RATES = ("output_tokens_per_s", "total_tokens_per_s", "prefill_tokens_per_s", "decode_tokens_per_s")
_STAGE = "stage_"
_TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}
"""Chart titles of the metrics that tables shorten; of any other, the name itself."""


class Series(msgspec.Struct, frozen=True):
    """A named row of values, one for each label of its chart; None where nothing was measured."""

    name: str
    values: Sequence[float | None]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """``labels`` stand along x at even distances. ``lines`` joins the values of a series; else they are bars."""

    title: str
    unit: str
    x: str
    labels: Sequence[str]
    series: Sequence[Series]
    lines: bool = False


def charts(result: Result) -> list[Chart]:
    """For a sweep lines over each of its axes, else bars. Raises ``ConfigError`` for a result without figures."""
    measured = [(point, figures) for point, figures in result.medians() if figures]
    if not measured:
        raise ConfigError("there is nothing to plot: no run succeeded")
    if not result.kind.startswith("sweep-"):
        return _bars(measured)
    axes = dict.fromkeys(_axis(point) for point, _ in measured)
    return [
        chart for axis in axes for chart in _lines(axis, [one for one in measured if _axis(one[0]) == axis])
    ]  # fmt: skip


class _Group(msgspec.Struct, frozen=True):
    """Figures that belong into one chart: name of the figure → what it is called there."""

    title: str
    unit: str
    names: Mapping[str, str]


def _groups(measured: Sequence[tuple[Point, Figures]]) -> list[_Group]:
    """Rates, times by stage, and a group of its own for each latency."""
    names = dict.fromkeys(name for _, figures in measured for name in figures)
    spreads = {name: part for name in names if (part := split(name))}
    groups = [
        _Group(
            "Throughput", "tokens/s", {name: name.removesuffix("_tokens_per_s") for name in names if name in _RATES}
        ),
        _Group("Start by stage", "s", {name: name[len(_STAGE) : -2] for name in names if name.startswith(_STAGE)}),
    ]
    for metric in dict.fromkeys(metric for metric, _ in spreads.values()):
        statistics = {name: statistic for name, (found, statistic) in spreads.items() if found == metric}
        groups.append(_Group(_TITLES.get(metric, metric.replace("_", " ").capitalize()), "ms", statistics))
    return [group for group in groups if group.names]


def _bars(measured: Sequence[tuple[Point, Figures]]) -> list[Chart]:
    """A chart for each group, a series for each point."""
    return [
        Chart(
            title=group.title,
            unit=group.unit,
            x="",
            labels=list(group.names.values()),
            series=[
                Series(label(point) or group.title, [figures.get(name) for name in group.names])
                for point, figures in measured
            ],
        )
        for group in _groups(measured)
    ]


def _lines(axis: str, measured: Sequence[tuple[Point, Figures]]) -> list[Chart]:
    """A chart for each group over one axis, a line for each figure."""
    x = axis.replace("_", " ")
    return [
        Chart(
            title=f"{group.title} by {x}",
            unit=group.unit,
            x=x,
            labels=[", ".join(map(str, point.values())) for point, _ in measured],
            series=[Series(name, [figures.get(key) for _, figures in measured]) for key, name in group.names.items()],
            lines=True,
        )
        for group in _groups(measured)
    ]


def _axis(point: Point) -> str:
    return ", ".join(point)
