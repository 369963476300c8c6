"""``lsv bench compare A.json B.json``: two saved results with their ratios."""

from __future__ import annotations

import msgspec

from lsv.cli.context import JSON, CommandContext
from lsv_base.errors import ConfigError
from lsv_bench.charts.compare import compare
from lsv_bench.result import read_result


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="client", extra=(JSON,), positional=2, usage="FILE FILE")
    if len(settings.positional) != 2:
        raise ConfigError("lsv bench compare takes two files that lsv bench wrote with --output: A.json B.json")
    first, second = settings.positional
    found = compare(read_result(first), read_result(second), names=(first, second))
    if settings["json"]:
        context.console.print_json(data={"a": first, "b": second, **msgspec.to_builtins(found)})
        return 0
    from lsv_bench.charts.tables import show_comparison

    show_comparison(found, context.console, (first, second))
    return 0
