"""The order in which tests run, and how modules are shared out to workers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite import durations, order


class Item:
    """A test as pytest collects it."""

    def __init__(self, nodeid: str, group: str | None = None) -> None:
        self.nodeid = nodeid
        self._group = group and pytest.mark.xdist_group(group).mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._group if name == "xdist_group" else None


def names(items: list[Item]) -> list[str]:
    return [item.nodeid for item in items]


def sort(items: list[Item], seconds: dict[str, float]) -> list[str]:
    order.put_longest_first(items, seconds)  # type: ignore[arg-type]
    return names(items)


def test_the_longest_module_is_first_and_its_tests_keep_their_order() -> None:
    items = [Item("a.py::one"), Item("b.py::two"), Item("a.py::zero"), Item("b.py::one"), Item("c.py::one")]
    found = sort(items, {"a.py": 1.0, "b.py": 9.0, "c.py": 4.0})
    assert found == ["b.py::two", "b.py::one", "c.py::one", "a.py::one", "a.py::zero"]


def test_a_group_counts_for_what_its_tests_take() -> None:
    """Half of the tests of b are in the group, and so are all of a."""
    items = [Item("a.py::one", "g"), Item("b.py::one", "g"), Item("b.py::two"), Item("c.py::one")]
    assert sort(items, {"a.py": 4.0, "b.py": 4.0, "c.py": 5.0})[:2] == ["a.py::one", "b.py::one"]


def test_modules_that_were_never_measured_have_a_place() -> None:
    items = [Item("short.py::one"), Item("new.py::one"), Item("long.py::one")]
    assert sort(items, {"short.py": 0.1, "long.py": 99.0}) == ["long.py::one", "new.py::one", "short.py::one"]


def test_a_module_that_takes_very_long_is_cut_into_equal_parts() -> None:
    tests = [f"a.py::{number}" for number in range(6)] + ["b.py::one"]
    parts = order.cut(tests, {"a.py": 2.5 * order.LONGEST, "b.py": 1.0})
    assert [parts[test] for test in tests] == ["a.py", "a.py", "a.py#1", "a.py#1", "a.py#2", "a.py#2", "b.py"]


def report(nodeid: str, seconds: float, **keywords: int) -> pytest.TestReport:
    return SimpleNamespace(nodeid=nodeid, duration=seconds, keywords=keywords)  # type: ignore[return-value]


def test_what_tests_take_is_written_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modules that did not run keep their figures; those that are gone lose theirs."""
    for name in ("a.py", "b.py"):
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / name).touch()
    monkeypatch.setattr(durations, "FILE", tmp_path / "tests" / "durations.json")
    durations.FILE.write_text('{"tests/b.py": {"fast": 7.0}, "tests/gone.py": {"fast": 1.0}}')
    watch = durations.Stopwatch()
    for one in (report("tests/a.py::x", 1.0), report("tests/a.py::x@group", 0.5), report("tests/a.py::y", 4.0, slow=1)):
        watch.pytest_runtest_logreport(one)
    watch.pytest_sessionfinish()
    assert json.loads(durations.FILE.read_text()) == {
        "tests/a.py": {"fast": 1.5, "slow": 4.0},
        "tests/b.py": {"fast": 7.0},
    }
    assert durations.expect("not slow and not gpu") == {"tests/a.py": 1.5, "tests/b.py": 7.0}
    assert durations.expect("slow and not gpu") == {"tests/a.py": 4.0, "tests/b.py": 0.0}
    assert durations.expect("") == {"tests/a.py": 5.5, "tests/b.py": 7.0}
