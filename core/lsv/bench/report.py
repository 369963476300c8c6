"""Figures of a run: percentiles, a table for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Figures = Mapping[str, float | int | str]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[min(len(ordered), int(rank)) - 1]


def spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Mean, p50, p90 and p99 of a latency in milliseconds."""
    mean = sum(seconds) / len(seconds) if seconds else 0.0
    figures = {f"{name}_mean_ms": mean * 1e3}
    figures.update({f"{name}_p{p}_ms": percentile(seconds, p) * 1e3 for p in (50, 90, 99)})
    return figures


def show(figures: Figures, console: Console, *, title: str, as_json: bool, output: str | None) -> None:
    """Print the figures, and write them to ``output`` where given."""
    if output:
        Path(output).write_text(json.dumps(dict(figures), indent=2) + "\n", encoding="utf-8")
    if as_json:
        console.print_json(data=dict(figures))
        return
    from rich.table import Table

    table = Table("figure", "value", title=title)
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}" if isinstance(value, float) else str(value))
    console.print(table)
