"""``python -m trials.flaky``: the fast tests that start processes, again and again under load, and which ones failed.

Load is a process for each core that computes without end, beside tests that run two at a time. Exit code 1 when a test
failed in any run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

TESTS = (
    "tests/core/engine", "tests/core/grammars", "tests/core/media", "tests/plugins/offline", "tests/base/processes",
    "tests/base/remote_code", "tests/core/text", "tests/plugins/runtime/worker", "tests/e2e", "tests/plugins/api",
    "tests/plugins/multimodal",
)  # fmt: skip
"""Folders whose tests start processes, or talk to some."""
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
_SLOW_FACTOR = 4
"""How much longer a test may take under load."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.flaky", description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS, help="what is run (default: all that start processes)")
    parser.add_argument("--runs", type=int, default=20, help="how many times")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="busy processes beside the tests")
    parser.add_argument("--timeout", type=int, default=300 * _SLOW_FACTOR, help="seconds a test may take")
    options = parser.parse_args()
    failed: Counter[str] = Counter()
    count = 0
    with tempfile.TemporaryDirectory() as folder, busy(options.load):
        for number in range(1, options.runs + 1):
            began, report = time.monotonic(), Path(folder) / f"{number}.xml"
            code = run_tests(options.tests, report, options.timeout)
            found, ran = read_report(report, code)
            failed.update(found)
            count = max(count, ran)
            took = time.monotonic() - began
            print(
                f"run {number} of {options.runs}: {len(found)} of {ran} failed, {took:.0f} s",
                *sorted(found),
                sep="\n  ",
                flush=True,
            )
    print_failures(failed, options.runs, count)
    return 1 if failed else 0


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep cores busy meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.send_signal(signal.SIGKILL)
            one.wait()


def run_tests(tests: Sequence[str], report: Path, timeout: int) -> int:
    """One run of the fast ones; pytest's exit code."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "not slow and not gpu",
        "-p", "no:cacheprovider", f"--timeout={timeout}", f"--junitxml={report}", *tests,
    ]  # fmt: skip
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def read_report(report: Path, code: int) -> tuple[set[str], int]:
    """The names of tests that failed, and how many ran. A run without a report is a failure, too."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return {f"pytest itself (exit code {code})"}, 0
    failed = {_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None}
    if code not in (0, 1) or (code == 1 and not failed):
        failed.add(f"pytest itself (exit code {code})")
    return failed, sum(case.find("skipped") is None for case in cases)


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def print_failures(failed: Counter[str], runs: int, count: int) -> None:
    """A table in Markdown."""
    if not failed:
        print(f"none of {count} tests failed in {runs} runs")
        return
    width = max(map(len, failed))
    print(f"| {'test'.ljust(width)} | failed |\n|{'-' * (width + 2)}|--------|")
    for name, times in failed.most_common():
        print(f"| {name.ljust(width)} | {times}/{runs} |")


if __name__ == "__main__":
    sys.exit(main())
