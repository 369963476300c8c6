"""How long the tests of each module take, as last measured: ``tests/durations.json``.

    make durations    run the fast tests and write down what they took

Seconds count setup, call and teardown, on an idle machine with as many workers as cores.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[3] / "tests" / "durations.json"
UNKNOWN = 5.0
"""The assumed seconds of a module that has not been measured."""

Seconds = dict[str, dict[str, float]]
"""By module, what its ``fast`` and its ``slow`` tests take together."""


def module_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def read() -> Seconds:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def expect(markers: str) -> dict[str, float]:
    """Seconds by module of the tests that ``-m markers`` selects."""
    unwanted = "slow" if "not slow" in markers else "fast" if "slow" in markers else None
    return {
        module: sum(seconds for kind, seconds in taken.items() if kind != unwanted) for module, taken in read().items()
    }


class Stopwatch:
    """A pytest plugin that adds up what tests take and writes it down when they have all run."""

    def __init__(self) -> None:
        self._taken: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._taken[module_of(report.nodeid), "slow" if "slow" in report.keywords else "fast"] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Modules that did not run keep their figures; deleted modules lose them."""
        known = read()
        for (module, kind), seconds in self._taken.items():
            known.setdefault(module, {})[kind] = round(seconds, 1)
        there = {module: known[module] for module in sorted(known) if (FILE.parents[1] / module).exists()}
        lines = ",\n".join(f"  {json.dumps(module)}: {json.dumps(taken)}" for module, taken in there.items())
        FILE.write_text(f"{{\n{lines}\n}}\n")
