"""Results and comparisons as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lsv_bench.charts.compare import Comparison
from lsv_bench.figures import Figures, medians, split
from lsv_bench.result import Point, Result, Run, label

_COLUMNS = {
    "output_tokens_per_s": "tok/s",
    "requests_per_s": "req/s",
    "goodput_per_s": "good/s",
    "prefill_tokens_per_s": "prefill tok/s",
    "decode_tokens_per_s": "decode tok/s",
    "latency_p50_ms": "latency p50",
    "ttft_p50_ms": "ttft p50",
    "ttft_p99_ms": "ttft p99",
    "itl_p50_ms": "itl p50",
    "itl_p99_ms": "itl p99",
    "e2el_p50_ms": "e2el p50",
    "errors": "errors",
}
"""Figures of a sweep's tables, as far as its runs have them."""
_UNBOUND = 10_000
"""Columns of a terminal on which any table fits: how wide it would like to be is measured there."""
_COLOURS = {"better": "green", "worse": "red"}


def show_result(result: Result, console: Console) -> None:
    """A table for each point, or for each axis of a sweep; then what went wrong."""
    if result.kind.startswith("sweep-"):
        _show_sweep(result, console)
    else:
        for point, runs in result.points():
            _show_point(result.title + (f", {label(point)}" if point else ""), runs, console)
    for run in result.runs:
        for message, count in run.errors.items():
            where = f" at {label(run.point)}" if run.point else ""
            console.print(Text(f"{count} × error{where}: {message}", style="red"))


def show_comparison(comparison: Comparison, console: Console, names: tuple[str, str]) -> None:
    table = Table(*(("point",) if any(row.point for row in comparison.rows) else ()), "figure", title=comparison.kind)
    for heading in ("A", "B", "B/A"):
        table.add_column(heading, justify="right")
    table.add_column("B is")
    table.add_column("better is")
    last = ""
    for row in comparison.rows:
        point = () if len(table.columns) == 6 else ("" if row.point == last else row.point,)
        if row.point != last and last:
            table.add_section()
        last = row.point
        ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
        verdict = Text(row.verdict, style=_COLOURS.get(row.verdict, ""))
        table.add_row(*point, row.figure, _number(row.a), _number(row.b), ratio, verdict, row.better or "")
    console.print(table)
    for name, file, repeats in zip("AB", names, comparison.repeats, strict=True):
        console.print(Text(f"{name} = {file}" + (f", medians of {repeats} repeats" if repeats > 1 else "")))
    for name, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            console.print(Text(f"only in {name}: {'; '.join(only)}"))
    for difference in comparison.differences:
        console.print(Text(f"not the same: {difference.what}: {difference.a} | {difference.b}", style="yellow"))


def _show_point(title: str, runs: Sequence[Run], console: Console) -> None:
    measured = [run.figures for run in runs if run.figures]
    if not measured:
        return
    table = Table("figure", title=title)
    headings = ("median", "lowest", "highest") if len(measured) > 1 else ("value",)
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, values in _columns_of(measured).items():
        if split(name) is None:
            table.add_row(name, *(_number(value) for value in values[: len(headings)]))
    console.print(table)
    _show_spreads({name: values[0] for name, values in _columns_of(measured).items()}, console, len(measured))


def _show_spreads(figures: Mapping[str, float], console: Console, repeats: int) -> None:
    """A row for each latency, a column for its mean and each percentile."""
    parts = {name: part for name in figures if (part := split(name))}
    if not parts:
        return
    statistics = list(dict.fromkeys(statistic for _, statistic in parts.values()))
    table = Table("milliseconds", title=f"medians of {repeats} repeats" if repeats > 1 else None)
    for statistic in statistics:
        table.add_column(statistic, justify="right")
    for metric in dict.fromkeys(metric for metric, _ in parts.values()):
        table.add_row(metric, *(_number(figures[f"{metric}_{statistic}_ms"]) for statistic in statistics))
    console.print(table)


def _columns_of(runs: Sequence[Figures]) -> dict[str, tuple[float, float, float]]:
    """Median, lowest and highest of each figure."""
    return {
        name: (median, min(values), max(values))
        for name, median in medians(runs).items()
        for values in ([run[name] for run in runs if name in run],)
    }


def _show_sweep(result: Result, console: Console) -> None:
    """A table for each axis, a row for each of its values."""
    measured = result.medians()
    console.print(Text(f"{result.title}; latencies in milliseconds"))
    for axis in dict.fromkeys(", ".join(point) for point, _ in measured):
        rows = [(point, figures) for point, figures in measured if ", ".join(point) == axis]
        names = [name for name in _COLUMNS if any(name in figures for _, figures in rows)]
        for table in _fitting(axis, rows, names, console):
            console.print(table)


def _fitting(axis: str, rows: Sequence[tuple[Point, Figures]], names: Sequence[str], console: Console) -> list[Table]:
    """One table, or where the terminal is too narrow several with some of the figures each."""
    table = _sweep_table(axis, rows, names)
    unbound = console.options.update(width=_UNBOUND)
    if len(names) <= 1 or console.measure(table, options=unbound).maximum <= console.width:
        return [table]
    half = (len(names) + 1) // 2
    return [*_fitting(axis, rows, names[:half], console), *_fitting(axis, rows, names[half:], console)]


def _sweep_table(axis: str, rows: Sequence[tuple[Point, Figures]], names: Sequence[str]) -> Table:
    table = Table()
    table.add_column(axis, no_wrap=True)
    for name in names:
        table.add_column(_COLUMNS[name], justify="right", no_wrap=True)
    for point, figures in rows:
        cells = [_rounded(figures[name]) if name in figures else "-" for name in names]
        table.add_row(", ".join(map(str, point.values())), *(cells if figures else ("failed",) if names else ()))
    return table


def _rounded(value: float) -> str:
    """Three digits or all before the point."""
    decimals = 0 if value >= 100 or float(value).is_integer() else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"


def _number(value: float) -> str:
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}"
    decimals = 4 if abs(value) < 0.1 else 2 if abs(value) < 1000 else 0
    return f"{value:,.{decimals}f}"
