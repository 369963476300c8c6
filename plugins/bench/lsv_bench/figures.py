"""Figures of a run: how they are named, summed up, and which way is better."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

Figures = dict[str, float]
"""Name → value. The end of a name is its unit: ``_ms``, ``_s``, ``_mib``, ``_per_s``, ``_percent``; else a count."""

_SPREAD = re.compile(r"(?P<metric>.+)_(?P<statistic>mean|p[\d.]+)_ms")
_LOWER = ("_ms", "_s", "_mib")
_HIGHER = ("_per_s", "_percent")


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[min(len(ordered), int(rank)) - 1]


def spread(name: str, seconds: Sequence[float], percents: Sequence[float] = (50, 90, 99)) -> Figures:
    """Mean and percentiles of a time, in milliseconds; nothing of no times."""
    if not seconds:
        return {}
    figures = {f"{name}_mean_ms": statistics.fmean(seconds) * 1e3}
    figures.update({f"{name}_p{percent:g}_ms": percentile(seconds, percent) * 1e3 for percent in percents})
    return figures


def split(name: str) -> tuple[str, str] | None:
    """``("ttft", "p99")`` of ``"ttft_p99_ms"``; None for a figure that is not part of a spread."""
    match = _SPREAD.fullmatch(name)
    return (match["metric"], match["statistic"]) if match else None


def better(name: str) -> Literal["higher", "lower"] | None:
    """Which way a figure improves; None for what only describes the run."""
    if name.endswith(_HIGHER):
        return "higher"
    if name.endswith(_LOWER) or name in ("errors", "seconds"):
        return "lower"
    return None


def medians(runs: Sequence[Mapping[str, float]]) -> Figures:
    """The median of each figure over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: statistics.median(run[name] for run in runs if name in run) for name in names}
