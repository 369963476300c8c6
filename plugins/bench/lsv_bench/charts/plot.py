"""A result as a picture: an HTML page that needs nothing else, or a PNG by matplotlib where that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from lsv_base.errors import ConfigError
from lsv_bench.charts.charts import Chart, charts
from lsv_bench.charts.svg import COLOURS, draw
from lsv_bench.result import Result, label

_STYLE = """body { font-family: system-ui, sans-serif; line-height: 1.45; max-width: 72em;
  margin: 0 auto; padding: 2.5em 1.5em 4em; color: #1a2530; background: #f5f7f8; }
h1 { font-size: 1.5em; margin: 0 0 0.6em; overflow-wrap: anywhere; }
code { display: inline-block; background: #e6eaed; border-radius: 4px; padding: 0.2em 0.6em; overflow-wrap: anywhere; }
p { color: #55626c; font-size: 0.85em; margin: 0.3em 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 28em), 1fr)); gap: 1.2em;
  margin: 1.8em 0; }
.charts div, table { background: #fff; border: 1px solid #e0e5e9; border-radius: 8px; padding: 1em; }
svg { display: block; width: 100%; }
table { border-collapse: collapse; font-size: 0.85em; width: fit-content; max-width: 100%; box-sizing: border-box;
  display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
td, th { padding: 0.3em 0.9em; text-align: right; border-bottom: 1px solid #edf0f2; white-space: nowrap; }
tr:last-child td { border-bottom: none; }
th { color: #55626c; font-weight: 600; }
th:first-child, td:first-child { text-align: left; }"""


def check_plot(path: str) -> None:
    """Raises ``ConfigError`` for a kind of picture that can't be drawn here; ask before anything is measured."""
    ending = Path(path).suffix.lower()
    if ending not in (".html", ".png"):
        raise ConfigError(f"plot must be a file that ends in .html or .png, got {path!r}", param="plot")
    if ending == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "a PNG plot needs matplotlib, which is not installed: pip install matplotlib, or give a .html file",
            param="plot",
        )


def write_plot(result: Result, path: str) -> None:
    """Raises ``ConfigError`` where the picture can't be made or written."""
    check_plot(path)
    drawn = charts(result)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if Path(path).suffix.lower() == ".html":
            Path(path).write_text(html_page(result, drawn), encoding="utf-8")
        else:
            _write_png(drawn, path)
    except OSError as cause:
        raise ConfigError(f"the plot can't be written to {path}: {cause}", param="plot") from cause


def html_page(result: Result, drawn: Sequence[Chart]) -> str:
    """The charts, all figures as a table, and what they were measured on; well-formed XML as well as HTML."""
    machine = result.machine
    versions = ", ".join(f"{name} {found}" for name, found in machine.versions.items())
    notes = [
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.system}",
        f"{versions}; {result.time}",
        *(f"{name}: {value}" for name, value in result.metadata.items()),
    ]
    return "\n".join((
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">',
        f'<head><meta charset="utf-8"/><title>{escape(result.title)}</title><style>{_STYLE}</style></head><body>',
        f"<h1>{escape(result.title)}</h1>",
        f"<p><code>{escape(result.command)}</code></p>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        '<div class="charts">',
        *(f"<div>{draw(chart)}</div>" for chart in drawn),
        "</div>",
        _figures_table(result),
        "</body></html>\n",
    ))  # fmt: skip


def _figures_table(result: Result) -> str:
    measured = [(point, figures) for point, figures in result.medians() if figures]
    names = dict.fromkeys(name for _, figures in measured for name in figures)
    heads = "".join(f"<th>{escape(label(point) or 'value')}</th>" for point, _ in measured)
    rows = (
        f"<tr><td>{escape(name)}</td>{''.join(_cell(figures.get(name)) for _, figures in measured)}</tr>"
        for name in names
    )
    return f"<table><tr><th>figure</th>{heads}</tr>{''.join(rows)}</table>"


def _cell(value: float | None) -> str:
    return "<td>-</td>" if value is None else f"<td>{value:,.6g}</td>"


def _write_png(drawn: Sequence[Chart], path: str) -> None:
    figure_module: Any = importlib.import_module("matplotlib.figure")
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = figure_module.Figure(figsize=(5.5 * columns, 3.6 * rows), layout="constrained")
    for index, chart in enumerate(drawn):
        axes = figure.add_subplot(rows, columns, index + 1)
        places = range(len(chart.labels))
        for number, series in enumerate(chart.series):
            values = [float("nan") if value is None else value for value in series.values]
            colour = COLOURS[number % len(COLOURS)]
            if chart.lines:
                axes.plot(places, values, marker="o", color=colour, label=series.name)
            else:
                width = 0.75 / len(chart.series)
                shifted = [place + width * (number - (len(chart.series) - 1) / 2) for place in places]
                axes.bar(shifted, values, width=width, color=colour, label=series.name)
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.unit)
        axes.set_xticks(list(places), chart.labels)
        if len(chart.series) > 1:
            axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
