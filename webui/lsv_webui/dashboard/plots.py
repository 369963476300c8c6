"""Small line plots as SVG; colours and fonts come from the page's style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 320.0, 96.0

Values = Sequence[float | None]
"""A series, oldest first; None where there was nothing to measure."""


def plot(
    title: str, lines: Sequence[tuple[str, Values]], form: Callable[[float], str], *, since: str, top: float = 0.0
) -> str:
    """A panel with one or two lines over time, from ``since`` ago to now. The scale reaches at least ``top``."""
    highest = max([top, *(value for _, values in lines for value in values if value is not None)]) or 1.0
    drawn = "".join(
        f'<polyline class="line-{index}" points="{piece}"/>{_shade(piece) if index == 0 else ""}'
        for index, (_, values) in enumerate(lines)
        for piece in _pieces(values, highest)
    )
    legend = "".join(
        f'<span class="key-{index}">{escape(name)} <b>{_newest(values, form)}</b></span>'
        for index, (name, values) in enumerate(lines)
    )
    return (
        f'<figure class="lsv-plot"><figcaption><h3>{escape(title)}</h3><div>{legend}</div></figcaption>'
        f'<div class="field"><span class="scale">{form(highest)}</span>'
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f'<path class="grid" d="M0 1H{WIDTH:g}M0 {HEIGHT / 2:g}H{WIDTH:g}M0 {HEIGHT - 1:g}H{WIDTH:g}"/>{drawn}</svg>'
        "</div>"
        f'<div class="time"><span>{escape(since)} ago</span><span>now</span></div></figure>'
    )


def _pieces(values: Values, highest: float) -> list[str]:
    """The points of each unbroken run; a single value becomes a short dash."""
    step = WIDTH / max(len(values) - 1, 1)
    runs: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            y = HEIGHT - 2 - (HEIGHT - 4) * value / highest
            runs[-1].append(f"{index * step:.1f},{y:.1f}")
    return [" ".join(run if len(run) > 1 else [run[0], _nudged(run[0])]) for run in runs if run]


def _shade(piece: str) -> str:
    """The area under a line."""
    first, last = piece.split(" ", 1)[0].partition(",")[0], piece.rsplit(" ", 1)[-1].partition(",")[0]
    return f'<polygon class="shade" points="{first},{HEIGHT - 1:g} {piece} {last},{HEIGHT - 1:g}"/>'


def _nudged(point: str) -> str:
    x, _, y = point.partition(",")
    return f"{float(x) - 2:.1f},{y}"


def _newest(values: Values, form: Callable[[float], str]) -> str:
    found = next((value for value in reversed(values) if value is not None), None)
    return "–" if found is None else form(found)
