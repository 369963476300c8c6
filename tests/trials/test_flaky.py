"""The stress run's own arithmetic: which tests failed how often. That tests run is pytest's business."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from trials.flaky import print_failures, read_report

REPORT = """<testsuites><testsuite>
<testcase classname="tests.core.test_a" name="test_fine"/>
<testcase classname="tests.core.test_a" name="test_skipped"><skipped/></testcase>
<testcase classname="tests.core.test_a" name="test_wrong"><failure>x</failure></testcase>
<testcase classname="tests.core.test_a" name="test_broken"><error>x</error></testcase>
</testsuite></testsuites>"""


def test_failures_and_errors_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.xml"
    report.write_text(REPORT)
    failed, ran = read_report(report, 1)
    assert failed == {"tests/core/test_a.py::test_wrong", "tests/core/test_a.py::test_broken"}
    assert ran == 3
    print_failures(Counter({"tests/core/test_a.py::test_wrong": 2}), 20, ran)
    assert "| tests/core/test_a.py::test_wrong | 2/20 |" in capsys.readouterr().out
    print_failures(Counter(), 20, ran)
    assert "none of 3 tests failed in 20 runs" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "code"), [("", 2), ("<testsuites/>", 3), ("<testsuites/>", 1)])
def test_a_run_that_came_to_nothing_is_a_failure(tmp_path: Path, content: str, code: int) -> None:
    report = tmp_path / "r.xml"
    if content:
        report.write_text(content)
    assert read_report(report, code)[0] == {f"pytest itself (exit code {code})"}
