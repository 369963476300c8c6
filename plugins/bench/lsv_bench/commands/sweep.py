"""``lsv bench sweep [serve|latency|throughput]``: the same benchmark over several points."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from lsv.cli.context import CommandContext
from lsv.settings import Settings
from lsv_base.errors import ConfigError, LsvError
from lsv_bench.commands import latency, serve, throughput
from lsv_bench.commands import settings as options
from lsv_bench.commands.workload import Report
from lsv_bench.result import Kind, Run
from lsv_bench.server import OwnServer
from lsv_bench.sweep import SUITES, Measured, Step, read_steps, steps

if TYPE_CHECKING:
    from lsv import LLM

_OFFLINE = {"latency": latency, "throughput": throughput}
_KINDS: dict[Measured, Kind] = {
    "serve": "sweep-serve",
    "latency": "sweep-latency",
    "throughput": "sweep-throughput",
}


def run(arguments: list[str], context: CommandContext) -> int:
    measured: Measured = "serve"
    rest = arguments
    for name in get_args(Measured):
        if arguments[:1] == [name]:
            measured, rest = name, arguments[1:]
    return _sweep_server(rest, context) if measured == "serve" else _sweep_engine(measured, rest, context)


def _sweep_server(arguments: list[str], context: CommandContext) -> int:
    own = (*serve.SETTINGS, *options.SWEEP, *options.OWN_SERVER)
    settings = context.settings(arguments, scope="client", extra=own)
    if settings["bench_cmd"]:
        arguments = [*_options(settings["bench_cmd"]), *arguments]
        settings = context.settings(arguments, scope="client", extra=own)
    plan = _plan("serve", settings)
    for step in (step for part in plan for step in part):
        serve.check(_overlaid(step, settings))
    report = Report(_KINDS["serve"], f"sweep, {serve.address(settings)}", arguments, settings, own)
    number = 0
    for part in plan:
        with _server(settings):
            model = serve.find_model(settings)
            for step in part:
                for _ in range(settings["repeats"]):
                    report.add(serve.measure(_overlaid(step, settings), model, number, step.point))
                    number += 1
    return report.show(context)


def _options(command: str) -> list[str]:
    """What follows ``bench serve`` in a command. Raises ``ConfigError`` for another one."""
    words = shlex.split(command)
    if words[1:3] != ["bench", "serve"]:
        raise ConfigError(
            f'bench-cmd must be like "lsv bench serve --num-prompts 100", got {command!r}', param="bench_cmd"
        )
    return words[3:]


def _sweep_engine(measured: Measured, arguments: list[str], context: CommandContext) -> int:
    benchmark = _OFFLINE[measured]
    own = (*benchmark.SETTINGS, *options.SWEEP)
    settings = context.settings(arguments, scope="engine", extra=own)
    plan = _plan(measured, settings)
    report = Report(_KINDS[measured], f"{measured} sweep", arguments, settings, own)
    for step in (step for part in plan for step in part):
        benchmark.check(_overlaid(step, settings))
    from lsv import LLM

    number = 0
    with LLM.from_settings(settings, context.plugins) as llm:
        for step in (step for part in plan for step in part):
            for _ in range(settings["repeats"]):
                report.add(_measure(measured, llm, settings, step, number))
                number += 1
    return report.show(context)


def _measure(measured: Measured, llm: LLM, settings: Settings, step: Step, number: int) -> Run:
    """One run; a point that the engine refuses, such as a prompt over its longest, is a run with an error."""
    try:
        figures = _OFFLINE[measured].measure(llm, _overlaid(step, settings), number)
    except ConfigError:
        raise
    except LsvError as error:
        return Run(point=step.point, errors={error.message: 1})
    return Run(point=step.point, figures=figures)


def _plan(measured: Measured, settings: Settings) -> list[list[Step]]:
    """The points, suite by suite. Raises ``ConfigError``."""
    wanted: Sequence[str] | None = settings["suite"]
    if settings["bench_params"]:
        if wanted or settings["values"]:
            raise ConfigError("give either bench-params or suites, not both", param="bench_params")
        return [read_steps(settings["bench_params"], settings.declared)]
    names = wanted or [name for name, suite in SUITES.items() if measured in suite.axis]
    for name in names:
        if name not in SUITES:
            raise ConfigError(f"suite must be any of {', '.join(SUITES)}, got {name!r}", param="suite")
    if settings["values"] and len(names) != 1:
        raise ConfigError(f"values are for one suite: add --suite with one of {', '.join(names)}", param="values")
    prompts = settings["num_prompts"] if settings.source("num_prompts") != "default" else None
    return [steps(name, measured, settings.declared, settings["values"], prompts=prompts) for name in names]


def _overlaid(step: Step, settings: Settings) -> Mapping[str, Any]:
    return {**settings, **step.changes}


@contextmanager
def _server(settings: Settings) -> Iterator[None]:
    """The user's own server, or one that is started here."""
    if not settings["serve_cmd"]:
        yield
        return
    command, url = shlex.split(settings["serve_cmd"]), serve.address(settings)
    with OwnServer(command, url, show_output=settings["show_stdout"]) as server:
        server.wait_until_ready(settings["ready_timeout"])
        yield
