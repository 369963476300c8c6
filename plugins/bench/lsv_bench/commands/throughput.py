"""``lsv bench throughput [MODEL]``: many requests at once, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsv.cli.context import CommandContext
from lsv_bench.commands import settings as options
from lsv_bench.commands.nodes import serve_as_node
from lsv_bench.commands.workload import Report, make_samples, recorded
from lsv_bench.figures import Figures
from lsv_bench.result import Run

if TYPE_CHECKING:
    from lsv import LLM

SETTINGS = (*options.REPORT, *options.DATASET, *options.OFFLINE)


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=SETTINGS)
    check(settings)
    if serve_as_node(settings, context):
        return 0
    report = Report("throughput", "throughput", arguments, settings, SETTINGS)
    from lsv import LLM

    with LLM.from_settings(settings, context.plugins) as llm:
        for number in range(settings["repeats"]):
            report.add(Run(figures=measure(llm, settings, number)))
    return report.show(context)


def check(settings: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for what would otherwise come up only once a model is loaded."""
    make_samples(settings, 1)


def measure(llm: LLM, settings: Mapping[str, Any], number: int) -> Figures:
    """One measurement with these settings. Raises ``LsvError``."""
    from lsv_bench.offline import measure_throughput

    samples = make_samples(settings, settings["num_prompts"], number=number)
    with recorded(llm, settings):
        return measure_throughput(llm, samples)
