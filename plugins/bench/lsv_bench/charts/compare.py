"""Two results side by side: medians, ratios, and which of the two is better."""

from __future__ import annotations

from typing import Literal

import msgspec

from lsv_base.errors import ConfigError
from lsv_bench.figures import better
from lsv_bench.result import Result, label

_NOTICEABLE = 0.01
"""Ratios that differ from 1 by less are called the same."""
_OF_THE_REPORT = ("repeats", "percentile_metrics", "metric_percentiles")
"""Settings that change what is shown, not what is measured."""

Verdict = Literal["better", "worse", "same", ""]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one point; ``ratio`` is b / a, None where a is 0; ``verdict`` says how b compares to a."""

    point: str
    figure: str
    a: float
    b: float
    ratio: float | None
    better: Literal["higher", "lower"] | None
    verdict: Verdict


class Difference(msgspec.Struct, frozen=True):
    """Something that was not the same for both, such as a setting or the machine."""

    what: str
    a: str
    b: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """``repeats`` are the largest numbers of repeats at a point; points and figures that only one has are left out."""

    kind: str
    repeats: tuple[int, int]
    rows: list[Row]
    differences: list[Difference]
    only_a: list[str]
    only_b: list[str]


def compare(a: Result, b: Result, *, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Raises ``ConfigError`` for results of different kinds, or with no point in common that both could measure."""
    if a.kind != b.kind:
        raise ConfigError(
            f"{names[0]} holds a {a.kind} benchmark and {names[1]} a {b.kind} one: only results of one kind compare"
        )
    left = {label(point): figures for point, figures in a.medians() if figures}
    right = {label(point): figures for point, figures in b.medians() if figures}
    common = [point for point in left if point in right]
    if not common:
        raise ConfigError(
            f"{names[0]} and {names[1]} have no point in common: "
            f"{'; '.join(left) or 'no run succeeded'} against {'; '.join(right) or 'no run succeeded'}"
        )
    return Comparison(
        kind=a.kind,
        repeats=(_repeats(a), _repeats(b)),
        rows=[
            _row(point, figure, left[point][figure], right[point][figure])
            for point in common
            for figure in left[point]
            if figure in right[point]
        ],
        differences=_differences(a, b),
        only_a=[point for point in left if point not in right],
        only_b=[point for point in right if point not in left],
    )


def _row(point: str, figure: str, a: float, b: float) -> Row:
    direction, ratio = better(figure), b / a if a else None
    return Row(
        point=point, figure=figure, a=a, b=b, ratio=ratio, better=direction, verdict=_judge(direction, a, b),
    )  # fmt: skip


def _judge(direction: Literal["higher", "lower"] | None, a: float, b: float) -> Verdict:
    if direction is None:
        return ""
    if abs(b - a) <= _NOTICEABLE * abs(a):
        return "same"
    return "better" if (b > a) == (direction == "higher") else "worse"


def _repeats(result: Result) -> int:
    return max((len(runs) for _, runs in result.points()), default=0)


def _differences(a: Result, b: Result) -> list[Difference]:
    """Settings and parts of the machine that are not the same."""
    left, right = _circumstances(a), _circumstances(b)
    return [
        Difference(name, left.get(name, "-"), right.get(name, "-"))
        for name in dict.fromkeys((*left, *right))
        if left.get(name) != right.get(name)
    ]


def _circumstances(result: Result) -> dict[str, str]:
    machine = msgspec.to_builtins(result.machine)
    versions = {f"{package} version": found for package, found in machine.pop("versions").items()}
    settings = {name: value for name, value in result.settings.items() if name not in _OF_THE_REPORT}
    return {name: str(value) for name, value in (machine | versions | settings).items()}
