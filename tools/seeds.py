"""Try what docs/compatibility.md says: launch lines of the predecessors' documents, and one row in thirty.

    make test-seeds            rows drawn by today's date
    make test-seeds SEED=7     other rows

For each row it runs the tests that prove the row's word, and derives the word anew from what they start. It prints a
table, and exits with 1 if a word differs from the page or a line is not answered.
"""

from __future__ import annotations

import argparse
import datetime
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import compatibility
from compatibility import EMULATED, PARSED, ROOT, WORKS, Held, Row, Started

from lsv.settings import environment_with

SHARE = 30
"""One row in as many is drawn."""
PROGRAMS = (
    "offline_inference",
    "llm_engine_example",
    "lora_with_quantization_inference",
    "multilora_inference",
    "offline_inference_encoder_decoder",
)
"""Those of the 25 lines that are programs, in vLLM's sources."""
_ON_RAY = "tests/plugins/ray/"
"""Tests that are skipped where Ray is not installed."""
_PYTEST = (sys.executable, "-m", "pytest", "-n2", "--dist", "loadgroup")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    parser.add_argument("--no-lines", action="store_true", help="leave out the launch lines")
    given = parser.parse_args()
    rows, held = compatibility.read_table(), compatibility.find_tests()
    evidence = compatibility.read_evidence()
    drawn = draw(rows, held, evidence, given.seed)
    print(f"seed {given.seed}: {len(drawn)} of {len(rows)} rows", flush=True)
    differing = try_rows(drawn, held, evidence)
    answered = True if given.no_lines else try_lines()
    print(f"{differing} rows differ from the page" + ("" if answered else "; lines failed"))
    return 0 if answered and not differing else 1


def draw(rows: Sequence[Row], held: Held, evidence: Started, seed: int) -> list[Row]:
    """One in thirty of the rows that tests hold."""
    proved = [row for row in rows if word(row, held, evidence) in (WORKS, EMULATED, PARSED)]
    return random.Random(seed).sample(proved, -(-len(proved) // SHARE))


def word(row: Row, held: Held, evidence: Started) -> str:
    return compatibility.state(row, held, evidence).partition(":")[0]


def choose_tests(row: Row, held: Held, evidence: Started) -> tuple[list[str], bool]:
    """The tests that prove a row's word, and whether that takes slow ones."""
    expected, tests = word(row, held, evidence), held[row.id]
    fast = {test: {"fast": evidence[test]["fast"]} for test in tests if "fast" in evidence.get(test, {})}
    proving = [test for test in fast if compatibility.judge(test, fast) == expected]
    return (proving, False) if proving else ([test for test in tests if test in evidence], True)


def try_rows(drawn: Sequence[Row], held: Held, evidence: Started) -> int:
    """Run the rows' tests and print what each proves now; returns how many rows differ."""
    chosen = [choose_tests(row, held, evidence) for row in drawn]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "evidence.json"
        for slow, marks in ((False, "not slow and not gpu"), (True, "not gpu")):
            tests = {test for tests, needs_slow in chosen if needs_slow == slow for test in tests}
            on_ray = {test for test in tests if test.startswith(_ON_RAY)}
            for group, packages in ((tests - on_ray, ""), (on_ray, find_packages())):
                if group:
                    run([*_PYTEST, f"--renew-evidence={file}", "-m", marks, *sorted(group)], PYTHONPATH=packages)
        found = compatibility.read_evidence(file) if file.exists() else {}
    differing = 0
    for row in sorted(drawn):
        expected, now = word(row, held, evidence), word(row, held, found)
        differing += expected != now
        print(f"{row.id:8} {expected:10} {now:10} {'' if expected == now else 'DIFFERS '}{row.feature[:70]}")
    return differing


def try_lines() -> bool:
    """Run the launch lines and the programs of the documents; whether all were answered."""
    programs = [f"tests/compat/test_examples.py::test_an_example_runs_unchanged[{name}]" for name in PROGRAMS]
    return run([*_PYTEST, "-rs", "tests/seeds", *programs]) == 0


def find_packages() -> str:
    """The folder with Ray, which ``make test-seeds`` installs apart; empty if it has not."""
    libraries = environment_with({}).get("LSV_TEST_LIBRARIES")
    return "" if libraries is None else str(next(Path(libraries).glob("env/lib/python3*/site-packages")))


def run(command: Sequence[str], **variables: str) -> int:
    environment = environment_with({"LSV_TEST_SEEDS": "1", "OMP_NUM_THREADS": "1", **variables})
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
