"""``lsv bench startup [MODEL]``: fresh servers, timed until they are ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from lsv.cli.context import CommandContext
from lsv.settings import Settings
from lsv_bench.commands import settings as options
from lsv_bench.commands.workload import Report, with_progress
from lsv_bench.result import Run
from lsv_bench.startup import drop_from_page_cache, measure_start

_READY_TIMEOUT = [setting for setting in options.OWN_SERVER if setting.name == "ready_timeout"]
SETTINGS = (*options.REPORT, *options.STARTUP, *_READY_TIMEOUT)
_CHOSEN_HERE = frozenset(("host", "port"))


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="serve", extra=SETTINGS)
    from lsv.resolve import resolve

    config = resolve(settings, context.plugins)  # refuses what could not start, before anything does
    report = Report("startup", f"startup of {config.served_names[0]}", arguments, settings, SETTINGS)
    own = frozenset(setting.name for setting in SETTINGS)
    starts = ["cold", "warm"] if settings["cold"] else ["warm"]
    order = ["warm"] * settings["num_warmups"] + starts * settings["repeats"]
    flags, key = as_arguments(settings, leave=own | _CHOSEN_HERE), next(iter(settings["api_key"]), None)

    def work(done: Callable[[], None]) -> None:
        for number, start in enumerate(order):
            if start == "cold":
                drop_from_page_cache(config.model)
            figures = measure_start(flags, timeout=settings["ready_timeout"], api_key=key)
            if number >= settings["num_warmups"]:
                report.add(Run(point={"start": start}, figures=figures))
            done()

    with_progress("starts", len(order), work)
    return report.show(context)


def as_arguments(settings: Settings, *, leave: frozenset[str]) -> list[str]:
    """The flags that give another process the settings that flags gave this one; the rest it finds where we did."""
    return [
        f"{setting.flag}={_spell(settings[setting.name])}"
        for setting in settings.declared
        if setting.name not in leave and settings.source(setting.name).startswith(("flag ", "argument"))
    ]


def _spell(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value)
