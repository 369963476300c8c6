"""Charts as SVG: lines over labels, or bars in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape, quoteattr

from lsv_bench.charts.charts import Chart

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Told apart by colour-blind eyes, too (Okabe and Ito)."""
_WIDTH, _HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 60, 46
_ROOM_FOR_VALUE = 40
"""The narrowest bar that bears its value, in units of the drawing."""
_LOG_FROM = 30.0
"""Lines whose values span more than this factor get a logarithmic axis."""
_MOST_LABELS = 12
_GRID, _BASE = "#e6eaed", "#9aa5ad"
"""Lines at the marked values, and the one at zero."""
_VALUE = 'text-anchor="middle" fill="#33414b" stroke="#fff" stroke-width="3" paint-order="stroke"'
"""Of a bar, which a line must not cross out."""

Scale = Callable[[float], float]
"""A value as its y in the drawing."""


def draw(chart: Chart) -> str:
    """One ``<svg>`` element."""
    ticks, scale = _axis(chart)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label={quoteattr(chart.title)} font-family="system-ui, sans-serif" font-size="11">',
        _text(_LEFT, 18, chart.title, 'font-size="14" font-weight="600" fill="#1a2530"'),
        _text(_WIDTH - _RIGHT, 18, chart.unit, 'text-anchor="end" fill="#6b7780"'),
        *_legend(chart),
    ]
    for value in ticks:
        y, colour = scale(value), _GRID if value else _BASE
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{value:,g}", 'text-anchor="end" fill="#444"'))
    every = math.ceil(len(chart.labels) / _MOST_LABELS)
    for index, name in enumerate(chart.labels):
        if index % every == 0:
            parts.append(_text(_middle(chart, index), _HEIGHT - _BOTTOM + 16, name, 'text-anchor="middle" fill="#444"'))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, chart.x, 'text-anchor="middle" fill="#666"'))
    parts += _lines(chart, scale) if chart.lines else _bars(chart, scale)
    return "\n".join((*parts, "</svg>"))


def nice_ticks(highest: float, count: int = 5) -> list[float]:
    """From 0 in steps of 1, 2 or 5 times a power of ten to ``highest`` or just above."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Powers of ten that enclose both; both must be positive."""
    first, last = math.floor(math.log10(lowest) + 1e-9), math.ceil(math.log10(highest) - 1e-9)
    return [10.0**exponent for exponent in range(first, max(last, first + 1) + 1)]


def _axis(chart: Chart) -> tuple[Sequence[float], Scale]:
    """The marked values of y, and where values go."""
    values = [value for series in chart.series for value in series.values if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    bottom, height = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    if chart.lines and low > 0 and high / low > _LOG_FROM:
        ticks = log_ticks(low, high)
        first, decades = math.log10(ticks[0]), math.log10(ticks[-1] / ticks[0])
        return ticks, lambda value: bottom - height * (math.log10(value) - first) / decades
    ticks = nice_ticks(high)
    return ticks, lambda value: bottom - height * value / ticks[-1]


def _legend(chart: Chart) -> list[str]:
    """The names of the series; none for a single one that says no more than the title."""
    if len(chart.series) == 1 and chart.series[0].name == chart.title:
        return []
    parts, x = [], float(_LEFT)
    for index, series in enumerate(chart.series):
        parts.append(f'<rect x="{x:.0f}" y="30" width="9" height="9" rx="2" fill="{_colour(index)}"/>')
        parts.append(_text(x + 13, 38, series.name, 'fill="#444"'))
        x += 27 + 6.2 * len(series.name)
    return parts


def _lines(chart: Chart, scale: Scale) -> list[str]:
    parts = []
    for index, series in enumerate(chart.series):
        dots = [(_middle(chart, n), scale(value)) for n, value in enumerate(series.values) if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_colour(index)}" stroke-width="2"/>')
        for n, value in enumerate(series.values):
            if value is not None:
                parts.append(
                    f'<circle cx="{_middle(chart, n):.1f}" cy="{scale(value):.1f}" r="3" fill="{_colour(index)}">'
                    f"{_hint(chart.labels[n], series.name, value, chart.unit)}</circle>"
                )
    return parts


def _bars(chart: Chart, scale: Scale) -> list[str]:
    width = 0.75 * _slot(chart) / len(chart.series)
    parts = []
    for index, series in enumerate(chart.series):
        for n, value in enumerate(series.values):
            if value is not None:
                x = _middle(chart, n) + width * (index - len(chart.series) / 2)
                y = scale(value)
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width - 1):.1f}" height="{scale(0) - y:.1f}" '
                    f'fill="{_colour(index)}">{_hint(chart.labels[n], series.name, value, chart.unit)}</rect>'
                )
                if width >= _ROOM_FOR_VALUE:
                    at = x + (width - 1) / 2
                    parts.append(_text(at, y - 5, f"{value:,.4g}", _VALUE))
    return parts


def _slot(chart: Chart) -> float:
    """The width that each label has."""
    return (_WIDTH - _LEFT - _RIGHT) / len(chart.labels)


def _middle(chart: Chart, index: int) -> float:
    return _LEFT + _slot(chart) * (index + 0.5)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _hint(place: str, name: str, value: float, unit: str) -> str:
    return f"<title>{escape(f'{place} · {name}: {value:,.4g} {unit}')}</title>"


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
