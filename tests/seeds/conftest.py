"""Launch lines of the predecessors' documents, run for real. ``make test-seeds`` runs them, nothing else does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .lines import AS_IT_STANDS
from .site import Site

collect_ignore_glob = [] if os.environ.get("LSV_TEST_SEEDS") else ["test_*.py"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The machine that the documents assume: checkpoints in their folders, pictures on a web server."""
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of the lines."""
    answers = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                noted = dict(report.user_properties)
                if "line" in noted:
                    answers[str(noted["line"])] = str(noted["answered"]) if report.passed else report.outcome
                elif "test_an_example_runs_unchanged[" in report.nodeid:
                    name = report.nodeid.partition("[")[2].rstrip("]")
                    answers[f"004 {name}"] = AS_IT_STANDS if report.passed else report.outcome
    if answers:
        terminalreporter.section("lines of the documents")
        for name, answer in sorted(answers.items()):
            terminalreporter.write_line(f"{name:45} {answer}")
