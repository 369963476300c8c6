"""``lsv kernels [MODEL]``: which implementation serves each op of a model, and why."""

from __future__ import annotations

import msgspec

from lsv.cli.context import JSON, CommandContext
from lsv.resolve import resolve


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=(JSON,))
    config = resolve(settings, context.plugins)
    from lsv_runtime.worker.load.survey import bound_ops

    ops = bound_ops(config, context.plugins.catalog)
    if settings["json"]:
        context.console.print_json(data=msgspec.to_builtins(ops))
        return 0
    from rich.table import Table

    title = f"{config.served_names[0]} on {config.platform} in {config.dtype}"
    table = Table("op", "modules", "implementation", "row-invariant", "why", title=title)
    for op in ops:
        table.add_row(op.op, str(op.count), op.implementation, "yes" if op.row_invariant else "no", op.why)
    context.console.print(table)
    return 0
