"""Counts of work a step takes, held against frozen ones: calls, ops, bytes. No seconds, so the machine does not matter.

A count above its frozen value by more than the tolerance fails. When the growth is meant, or counts have fallen and
shall stay so, freeze anew and commit the file:

    python -m pytest tests/perf --renew-counts

Counts of Python calls and allocations depend on the interpreter; they are kept by Python version, and a version nobody
has frozen is held to the counts of another one with a wide margin.
"""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

FILE = Path(__file__).parent / "counts.json"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TOLERANCE = 1.03
FOREIGN_TOLERANCE = 1.3
"""For counts that were frozen with another version of Python."""
SLACK = 0.05
"""Added to every limit, so that a count of nothing may be a rounding error."""

Action = Callable[[], object]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-counts", action="store_true", help=f"freeze the counts of tests/perf in {FILE.name}")


class Frozen:
    """The counts that were frozen, by test and name; ``check`` compares with them, or freezes anew."""

    def __init__(self, test: str, *, renew: bool) -> None:
        self._test = test
        self._renew = renew

    def check(self, counts: Mapping[str, float], tolerance: float = TOLERANCE) -> None:
        """Fail for every count that has grown, or that was never frozen."""
        if self._renew:
            _renew(self._test, counts)
            return
        version, limits = _frozen(self._test)
        tolerance = tolerance if version == VERSION else FOREIGN_TOLERANCE
        missing = sorted(counts.keys() - limits.keys())
        grown = [
            f"{name}: {count:g}, frozen {limits[name]:g}"
            for name, count in counts.items()
            if name in limits and count > limits[name] * tolerance + SLACK
        ]
        if missing or grown:
            pytest.fail(_explain(grown, missing), pytrace=False)


@pytest.fixture
def frozen(request: pytest.FixtureRequest) -> Frozen:
    return Frozen(request.node.name, renew=request.config.getoption("--renew-counts", default=False))


@pytest.fixture
def count_calls() -> Callable[[Action], int]:
    """Calls of functions in Python, and of builtins from there, while an action runs in this thread."""

    def count(action: Action) -> int:
        calls = 0

        def note(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        with _undisturbed():
            sys.setprofile(note)
            try:
                action()
            finally:
                sys.setprofile(None)
        return calls - 1  # the last one is setprofile itself

    return count


@pytest.fixture
def count_peak_bytes() -> Callable[[Action], int]:
    """The most memory in bytes that Python objects take at once while an action runs, beyond what was there before."""

    def count(action: Action) -> int:
        with _undisturbed():
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                action()
                return tracemalloc.get_traced_memory()[1] - before
            finally:
                tracemalloc.stop()

    return count


@pytest.fixture
def count_ops() -> Callable[[Action], Counter[str]]:
    """Ops that torch dispatches while an action runs, by name."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Note(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: Counter[str] = Counter()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.found[str(func)] += 1
            return func(*args, **(kwargs or {}))

    def count(action: Action) -> Counter[str]:
        with Note() as note:
            action()
        return note.found

    return count


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection, whose callbacks would be counted."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _frozen(test: str) -> tuple[str, Mapping[str, float]]:
    """The version whose counts hold here, and those counts."""
    known = _read().get(test, {})
    version = VERSION if VERSION in known else max(known, default=VERSION)
    return version, known.get(version, {})


def _renew(test: str, counts: Mapping[str, float]) -> None:
    known = _read()
    known.setdefault(test, {})[VERSION] = {name: round(count, 3) for name, count in counts.items()}
    FILE.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read() -> dict[str, dict[str, dict[str, float]]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def _explain(grown: list[str], missing: list[str]) -> str:
    lines = ["a step takes more work than it did:", *grown] if grown else []
    lines += [f"never frozen: {', '.join(missing)}"] if missing else []
    renew = f"if this is meant: python -m pytest tests/perf --renew-counts, and commit {FILE.name} with the reason"
    return "\n  ".join(lines) + f"\n{renew}"
