"""``lsv bench latency|throughput|offline|serve|sweep|startup|compare``."""

from __future__ import annotations

import importlib

from lsv.cli.context import CommandContext, HelpWanted, wants_help
from lsv_base.errors import ConfigError, suggestion

KINDS = {
    "latency": ("lsv_bench.commands.latency", "how long one batch takes in this process"),
    "throughput": ("lsv_bench.commands.throughput", "tokens a second of many requests in this process"),
    "offline": ("lsv_bench.commands.offline", "a file of prompts, answered by engines on a Ray cluster"),
    "serve": ("lsv_bench.commands.serve", "a running server under load"),
    "sweep": ("lsv_bench.commands.sweep", "serve, latency or throughput over rates, concurrencies or lengths"),
    "startup": ("lsv_bench.commands.startup", "time and memory that a server takes to start"),
    "compare": ("lsv_bench.commands.compare", "two saved results with their ratios"),
}
"""Kind → (module with ``run(arguments, context)``, help)."""


def run(arguments: list[str], context: CommandContext) -> int:
    kind = arguments[0] if arguments else ""
    if kind in KINDS:
        from lsv_bench.openai_api import quieten

        quieten()
        try:
            code: int = importlib.import_module(KINDS[kind][0]).run(arguments[1:], context)
            return code
        except HelpWanted as wanted:
            from lsv.cli.help import show_settings

            show_settings(context.console, f"bench {kind}", KINDS[kind][1], wanted)
            return 0
    if wants_help(arguments[:1]):
        _show_kinds(context)
        return 0
    names = ", ".join(KINDS)
    raise ConfigError(
        f"lsv bench takes one of {names}, e.g. lsv bench throughput MODEL"
        + (f"; got {kind!r}{suggestion(kind, KINDS)}" if kind else "")
    )


def _show_kinds(context: CommandContext) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    for name, (_, text) in KINDS.items():
        table.add_row(f"  [bold]{name}[/bold]", text)
    context.console.print("usage: lsv bench <kind> [options]\n", markup=False)
    context.console.print(table)
    context.console.print("\nlsv bench <kind> --help shows its options.", markup=False)
