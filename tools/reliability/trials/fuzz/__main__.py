"""``python -m trials.fuzz``: damaged files and bodies, random requests, random histories; what was found in a table.

The time is shared between the parts. Exit code 1 when anything was found; each finding is a file in the folder, with
the way to replay it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trials.fuzz.api import fuzz_api
from trials.fuzz.machines import fuzz_machines
from trials.fuzz.targets import TARGETS
from trials.fuzz.watch import Watch
from trials.table import Figure, at_most, print_heading, print_table, told

Part = Callable[[float, int, Path], list[Figure]]


def api(seconds: float, seed: int, folder: Path) -> list[Figure]:
    figures = []
    for report in fuzz_api(seconds, seed, folder):
        figures += [
            Figure(f"requests to {report.model}", report.summary, "all pass", report.passed),
            at_most(f"tracebacks in the log of {report.model}", report.faults, 0),
        ]
        if not report.passed:
            print(f"see {report.output}", flush=True)
    return figures


def machines(seconds: float, seed: int, folder: Path) -> list[Figure]:
    report = fuzz_machines(seconds, seed, folder)
    for file in report.failures:
        print(f"see {file}", flush=True)
    return [
        told(f"machines in {report.runs} rounds", f"{report.passed} passed"),
        at_most("rounds of machines that failed", len(report.failures), 0),
    ]


def inputs(seconds: float, seed: int, folder: Path) -> list[Figure]:
    figures = []
    for target in TARGETS:
        report = Watch(target.name, seed, folder).run(seconds / len(TARGETS))
        for place, file in report.found.items():
            print(f"{target.name}: {place}, see {file}.txt", flush=True)
        figures.append(at_most(f"{target.name}: faults in {report.inputs} inputs", len(report.found), 0))
    return figures


PARTS: Mapping[str, tuple[float, Part]] = {"inputs": (0.45, inputs), "api": (0.35, api), "machines": (0.2, machines)}
"""Parts, and their shares of the time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder for what is found")
    options = parser.parse_args()
    print_heading(options)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = {name: PARTS[name] for name in options.parts or PARTS}
    whole = sum(share for share, _ in chosen.values())
    figures = []
    for share, part in chosen.values():
        figures += part(60 * options.minutes * share / whole, options.seed, options.out.resolve())
    return 0 if print_table(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
