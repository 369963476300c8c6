"""The state machines and populations of the test suite, again and again with other seeds and more examples."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
_COUNT = re.compile(r"(\d+) (passed|failed|error)")


@dataclass(frozen=True)
class MachineReport:
    """``runs`` of all machines; ``failures`` are files of pytest's output, with the command that repeats it."""

    runs: int
    passed: int
    failures: list[Path]


def fuzz_machines(seconds: float, seed: int, folder: Path) -> MachineReport:
    """Rounds with seeds from ``seed`` on, until the time is over; the first round is always run to its end."""
    until = time.monotonic() + seconds
    runs, passed, failures = 0, 0, []
    while not runs or time.monotonic() < until:
        done = subprocess.run(
            command(seed + runs), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        text = done.stdout.decode("utf-8", "replace")
        passed += sum(int(count) for count, what in _COUNT.findall(text) if what == "passed")
        if done.returncode:
            failures.append(folder / f"machines-{seed + runs}.txt")
            failures[-1].write_text(f"{' '.join(command(seed + runs))}\n\n{text}", encoding="utf-8")
        runs += 1
    return MachineReport(runs, passed, failures)


def command(seed: int) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-m", "machine", "-p", "no:cacheprovider", "--timeout", "0", "tests"),
        *("--hypothesis-profile", "fuzz", "--hypothesis-seed", str(seed)),
    ]
