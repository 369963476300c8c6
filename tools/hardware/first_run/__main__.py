"""``python -m first_run``: the ladder, then tests and benchmarks for devices, then one report.

Exit code 0 when every rung gives the CPU's answers and every check ends well, 1 when not, 2 where there is no device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from first_run.checks import Check, Done, carry_out, look_around, measure
from first_run.ladder import REFERENCE, Outcome, Rung, climb, rungs
from first_run.report import write
from lsv import plugins
from lsv.config import Choices
from lsv.resolve.hardware import choose_platform
from lsv_base.errors import ConfigError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m first_run", description=__doc__.splitlines()[0])
    parser.add_argument("--platform", default="auto", help="the platform to try; auto takes the first with a device")
    parser.add_argument("--emulate", action="store_true", help="climb the ladder in the platform's emulation, no more")
    parser.add_argument("--out", type=Path, default=Path("build/hardware"), help="folder of the report")
    options = parser.parse_args()
    catalog = plugins.load().catalog
    try:
        platform, device = choose_platform(options.platform, options.emulate, catalog, Choices())
    except ConfigError as error:
        print(error.message, file=sys.stderr)
        return 2
    if platform.name == "cpu":
        print("there is no accelerator here: lsv doctor says what each platform looked for", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{platform.name}: {device.name}", flush=True)
    done = [] if options.emulate else run_checks(look_around(), options.out)
    common = {"emulate": True} if options.emulate else {}
    ladder = climb_all(rungs(platform, catalog, common))
    done += [] if options.emulate else run_checks(measure(options.out), options.out)
    print(f"report: {write(options.out, device.name, ladder, done)}")
    return 0 if all(one.holds for one in ladder) and all(one.code == 0 for one in done) else 1


def climb_all(ladder: Iterable[Rung]) -> list[Outcome]:
    """All rungs, whatever comes of the ones before: each is its own process."""
    reference = climb(Rung("the CPU, for comparison", REFERENCE), None)
    _tell(reference)
    if not reference.holds:
        return [reference]
    outcomes = []
    for rung in ladder:
        outcomes.append(climb(rung, reference.found))
        _tell(outcomes[-1])
    return outcomes


def run_checks(checks: Iterable[Check], out: Path) -> list[Done]:
    done = []
    for check in checks:
        done.append(carry_out(check, out))
        print(f"{check.name}: exit code {done[-1].code}, {done[-1].seconds:.0f} s", flush=True)
    return done


def _tell(outcome: Outcome) -> None:
    print(f"{outcome.rung.adds}: {outcome.verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
