"""Tests on published weights, which ``make test-real`` fetches into the folder LSV_TEST_REAL, and only there."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

PLACE = os.environ.get("LSV_TEST_REAL")

collect_ignore_glob = [] if PLACE else ["test_*.py"]


@pytest.fixture(scope="session")
def published():
    from published.models import Published

    assert PLACE is not None
    return Published(Path(PLACE))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each part took."""
    seconds = Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.nodeid.startswith("tests/real/"):
                seconds[Path(report.nodeid.partition("::")[0]).stem.removeprefix("test_")] += report.duration
    if seconds:
        terminalreporter.section("parts of test-real")
        for part, taken in sorted(seconds.items()):
            terminalreporter.write_line(f"{part:20} {taken / 60:5.1f} minutes")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count the runs: each takes the next emulated platform."""
    if PLACE is not None and not hasattr(session.config, "workerinput"):
        counter = Path(PLACE) / "runs"
        counter.write_text(str(int(counter.read_text()) + 1 if counter.exists() else 1))
