"""The page of compatibility is computed from tests, and the table beside it says only what they can't."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compatibility", ROOT / "tools" / "compatibility.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compatibility = load()
Row = compatibility.Row


@pytest.fixture(scope="module")
def held() -> dict[str, list[str]]:
    """All tests of rows, found in the source."""
    found: dict[str, list[str]] = compatibility.find_tests()
    return found


def test_rows_that_tests_name_exist_and_nothing_contradicts_them(held: dict[str, list[str]]) -> None:
    rows, evidence = compatibility.read_table(), compatibility.read_evidence()
    assert compatibility.find_faults(rows, held, evidence) == []
    assert "tests/launch/test_recipes.py::test_the_line_for_gaudis" in held["F-196"]


def test_the_page_is_what_the_tests_say(held: dict[str, list[str]]) -> None:
    page = compatibility.page(compatibility.read_table(), held, compatibility.read_evidence())
    assert compatibility.DOCUMENT.read_text(encoding="utf-8") == page, "run python tools/compatibility.py --write"


def test_all_evidence_is_of_tests_that_name_rows(held: dict[str, list[str]]) -> None:
    named = {test for tests in held.values() for test in tests}
    assert [test for test in compatibility.read_evidence() if test not in named] == [], "run make evidence"


EVIDENCE = {
    "tests/a.py::b": {"fast": ["engine cpu", "settings"]},
    "tests/a.py::emulated": {"fast": ["settings"], "slow": ["engine xpu emulated"]},
    "tests/a.py::parsed": {"fast": ["settings"]},
    "tests/a.py::absent": {"fast": ["command hpu", "settings"]},
}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row("F-1", "g", "f", "", ""), "works"),
        (Row("F-1", "g", "f", "", "no z"), "works: no z"),
        (Row("F-2", "g", "f", "", "no z"), "not run"),
        (Row("F-3", "g", "f", "", ""), "emulated"),
        (Row("F-4", "g", "f", "", "no z"), "parsed: no z"),
        (Row("F-5", "g", "f", "", ""), "parsed"),
        (Row("F-1", "g", "f", "partly", "no x"), "partly: no x"),
        (Row("F-2", "g", "f", "planned", ""), "planned"),
        (Row("F-2", "g", "f", "not applicable", "no y"), "not applicable: no y"),
    ],
)
def test_the_state_of_a_row(row: tuple[str, ...], expected: str) -> None:
    held = {
        "F-1": ["tests/a.py::parsed", "tests/a.py::b"], "F-3": ["tests/a.py::emulated"], "F-4": ["tests/a.py::parsed"],
        "F-5": ["tests/a.py::absent"],
    }  # fmt: skip
    assert compatibility.state(row, held, EVIDENCE) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("from lsv.kv.pool import BlockPool", "works"),
        ("from lsv import LLM", "works"),
        ("from lsv_models.plugin import lsv_models", "works"),
        ("from lsv.settings import Settings\nfrom lsv.resolve import resolve", "parsed"),
        ("import json", "parsed"),
        ("from lsv.kv.pool import BlockPool\nfrom lsv_hpu.buckets import Buckets", "emulated"),
        ("from .other import helper", "emulated"),
    ],
)
def test_a_test_that_starts_nothing_proves_what_its_file_imports(
    lines: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.py").write_text("import lsv_xpu")
    (tmp_path / "test_x.py").write_text(lines)
    monkeypatch.setattr(compatibility, "ROOT", tmp_path)
    assert compatibility.judge("test_x.py::test_y", {"test_x.py::test_y": {"fast": []}}) == expected


def test_what_does_not_fit_together_is_told() -> None:
    rows = [Row("F-1", "g", "f", "planned", ""), Row("F-2", "g", "f", "partly", ""), Row("F-2", "g", "f", "good", "")]
    faults = compatibility.find_faults(rows, {"F-1": ["a::b"], "F-3": ["a::c"]}, EVIDENCE)
    assert len(faults) == 5
    assert "a::c holds F-3, which is no row" in faults
    assert "F-1 is said to be planned, and a::b holds it" in faults


def test_marks_are_read_from_the_source(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "test_x.py"
    file.parent.mkdir()
    file.write_text("import pytest\n\n@pytest.mark.row('F-1', 'F-2')\nasync def test_y():\n    ...\n")
    assert compatibility.find_tests(tmp_path / "tests") == {
        "F-1": ["tests/test_x.py::test_y"],
        "F-2": ["tests/test_x.py::test_y"],
    }


def test_marks_of_a_file_and_of_single_parameters_count(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "test_x.py"
    file.parent.mkdir()
    file.write_text(
        "import pytest\n\npytestmark = [pytest.mark.slow, pytest.mark.row('F-1')]\n\ndef helper():\n    ...\n\n"
        "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.row('F-2'))])\ndef test_y(x):\n    ...\n"
    )
    assert compatibility.find_tests(tmp_path / "tests") == {"F-1": ["tests/test_x.py::test_y"],
                                                            "F-2": ["tests/test_x.py::test_y"]}  # fmt: skip


def test_the_page_has_a_table_for_each_group() -> None:
    rows = [Row("F-1", "Group", "a|b", "", ""), Row("F-2", "Other", "c", "planned", "soon")]
    text = compatibility.page(rows, {"F-1": ["tests/a.py::b"]}, EVIDENCE)
    assert "## Group\n\n| row | feature | state |\n|---|---|---|\n| F-1 | a\\|b | works |\n" in text
    assert "| F-2 | c | planned: soon |" in text
