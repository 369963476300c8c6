"""``lsv bench latency [MODEL]``: one batch, again and again, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsv.cli.context import CommandContext
from lsv_bench.commands import settings as options
from lsv_bench.commands.nodes import serve_as_node
from lsv_bench.commands.workload import Report, make_samples, read_percentiles, recorded, with_progress
from lsv_bench.figures import Figures
from lsv_bench.result import Run

if TYPE_CHECKING:
    from lsv import LLM

SETTINGS = (*options.REPORT, *options.DATASET, *options.OFFLINE, *options.LATENCY, *options.PERCENTILES)


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=SETTINGS)
    check(settings)
    if serve_as_node(settings, context):
        return 0
    report = Report("latency", "latency", arguments, settings, SETTINGS)
    from lsv import LLM

    with LLM.from_settings(settings, context.plugins) as llm:
        for number in range(settings["repeats"]):
            report.add(Run(figures=measure(llm, settings, number)))
    return report.show(context)


def check(settings: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for what would otherwise come up only once a model is loaded."""
    read_percentiles(settings)
    make_samples(settings, 1)


def measure(llm: LLM, settings: Mapping[str, Any], number: int) -> Figures:
    """One measurement with these settings. Raises ``LsvError``."""
    from lsv_bench.offline import measure_latency

    samples = make_samples(settings, settings["batch_size"], number=number)
    warmup, rounds, percents = settings["num_iters_warmup"], settings["num_iters"], read_percentiles(settings)
    with recorded(llm, settings):
        return with_progress(
            "rounds",
            warmup + rounds,
            lambda done: measure_latency(llm, samples, warmup=warmup, rounds=rounds, percents=percents, done=done),
        )
