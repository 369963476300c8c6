"""The commands: see the package's docstring, and ``docs/scaling.md``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import simulate
from simulate.autoscale import Scale
from simulate.figures import Figures
from simulate.fleet import BALANCERS, Shape
from simulate.run import simulate as run_once
from simulate.size import Target, find_fewest
from simulate.steps import StepTimes
from simulate.workload import Load

MOST = 4096


def main(words: Sequence[str] | None = None) -> None:
    options = _read(words)
    options.command(options)


def _read(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="simulate", description=simulate.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    one = commands.add_parser("run", help="figures of a fleet under a load")
    _add_load(one)
    one.add_argument("--scale", metavar="LEAST:MOST", help="numbers of servers between which an autoscaler chooses")
    one.add_argument("--waiting", type=float, default=4.0, help="requests that may wait at a server before it does")
    one.set_defaults(command=_run)

    size = commands.add_parser("size", help="the fewest replicas that keep times under a target")
    _add_load(size)
    size.add_argument("--ttft-ms", type=float, default=1000.0, help="99 of 100 requests have their first token by then")
    size.add_argument("--itl-ms", type=float, default=100.0, help="99 of 100 gaps between tokens are not longer")
    size.set_defaults(command=_size)

    measure = commands.add_parser("measure", help="how long the steps of a real engine take")
    measure.add_argument("model", help="a model, or a shape of benchmarks/checkpoints.py with random weights")
    measure.add_argument("-o", "--output", type=Path, required=True)
    measure.add_argument("options", nargs=argparse.REMAINDER, help="those of lsv serve, after --")
    measure.set_defaults(command=_measure)

    validate = commands.add_parser("validate", help="predicted beside measured, of two real replicas")
    validate.add_argument("--model", default="", help="as of measure; without one, steps sleep instead of computing")
    validate.add_argument("--users", type=int, default=8)
    validate.add_argument("--think", type=float, default=1.0)
    validate.add_argument("--seconds", type=float, default=20.0, help="that are compared")
    validate.add_argument("options", nargs=argparse.REMAINDER, help="those of lsv serve, after --")
    validate.set_defaults(command=_validate)
    return parser.parse_args(words)


def _add_load(parser: argparse.ArgumentParser) -> None:
    """An option for each field of the load and the fleet."""
    parser.add_argument("--steps", type=Path, required=True, help="what measure wrote")
    for record, texts in ((Shape, {"balancer": {"choices": BALANCERS}}), (Load, {})):
        for one in fields(record):
            name = f"--{one.name.replace('_', '-')}"
            if isinstance(one.default, bool):
                parser.add_argument(name, action=argparse.BooleanOptionalAction, default=one.default)
            else:
                parser.add_argument(name, type=type(one.default), default=one.default, **texts.get(one.name, {}))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--warm", type=float, default=120.0, help="seconds before that, which do not count")
    parser.add_argument("--seed", type=int, default=0)


def _pick(record: type[Any], options: argparse.Namespace) -> Any:
    return record(**{one.name: getattr(options, one.name) for one in fields(record)})


def _simulate(options: argparse.Namespace, replicas: int, scale: Scale | None = None) -> Figures:
    return run_once(
        StepTimes.load_from(options.steps), replace(_pick(Shape, options), replicas=replicas), _pick(Load, options),
        seconds=options.seconds, warm=options.warm, seed=options.seed, scale=scale,
    )  # fmt: skip


def _run(options: argparse.Namespace) -> None:
    scale = None
    if options.scale:
        least, most = map(int, options.scale.split(":"))
        scale = Scale(least, most, options.waiting, StepTimes.load_from(options.steps).load)
    _print(options.replicas, _simulate(options, options.replicas, scale))


def _size(options: argparse.Namespace) -> None:
    target = Target(options.ttft_ms, options.itl_ms)
    found = find_fewest(lambda replicas: _simulate(options, replicas), target, MOST)
    if found is None:
        raise SystemExit(f"{MOST} replicas are too few: a single request may already take longer than the target")
    _print(*found)


def _print(replicas: int, figures: Figures) -> None:
    shown = {name: round(value, 3) for name, value in figures.summary().items()}
    print(json.dumps({"started_with": replicas, **shown}), flush=True)


def _measure(options: argparse.Namespace) -> None:
    from simulate.measure import measure_model

    measure_model(options.model, _words(options)).save(options.output)


def _validate(options: argparse.Namespace) -> None:
    from simulate.validate import validate

    options.options = _words(options)
    validate(options)


def _words(options: argparse.Namespace) -> list[str]:
    return [word for word in options.options if word != "--"]


if __name__ == "__main__":
    main()
