"""``lsv doctor``: what is here and what is missing, what the devices attain, and a report for bug trackers."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lsv.cli.context import JSON, CommandContext
from lsv.config import Choices
from lsv.resolve.hardware import choose_platform
from lsv.settings import Setting, Settings
from lsv.settings.launchers import read_rank
from lsv_base.errors import ConfigError
from lsv_doctor import report
from lsv_doctor.evaluate import Row, evaluate, write_csv
from lsv_doctor.findings import Line, look
from lsv_doctor.model import explain_model

_SETTINGS = (
    JSON,
    Setting(
        name="evaluate", type="bool", default=False, scope="all", group="Doctor",
        help="measure what the platform's devices attain; takes seconds for each",
    ),
    Setting(
        name="collectives", type="bool", default=False, scope="all", group="Doctor",
        help="check the collectives of ranks that torchrun has started, one for each device",
    ),
    Setting(name="csv", scope="all", group="Doctor", help="file that --evaluate writes its measurements to"),
    Setting(
        name="report", scope="all", group="Doctor",
        help="file to write all of this to for a bug report, without keys, tokens and names",
    ),
)  # fmt: skip
_OWN = frozenset(setting.name for setting in _SETTINGS)


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="serve", extra=_SETTINGS)
    if settings["csv"] and not settings["evaluate"]:
        raise ConfigError("--csv holds what --evaluate measures: give that too", param="csv")
    if settings["evaluate"] and settings["report"]:
        raise ConfigError("--report measures nothing: run --evaluate by itself", param="report")
    if settings["collectives"]:
        return _check_collectives(context, settings)
    if settings["evaluate"]:
        return _evaluate(context, settings)
    lines = look(context.plugins)
    if settings.source("model") != "default":
        lines += explain_model(settings, context.plugins)
    if settings["report"]:
        file = Path(settings["report"])
        report.write(file, report.collect(lines, context.plugins, settings))
        context.console.print(Text(f"wrote {file}: look through it before you send it"))
        return 0
    if settings["json"]:
        checks = [line._asdict() for line in lines]
        context.console.print_json(data={"checks": checks, "settings": _in_force(settings)})
    else:
        _show(context, lines, settings)
    return 0 if all(line.ok for line in lines) else 1


def _in_force(settings: Settings) -> dict[str, dict[str, object]]:
    return {name: entry for name, entry in report.in_force(settings).items() if name not in _OWN}


def _show(context: CommandContext, lines: list[Line], settings: Settings) -> None:
    table = Table.grid(padding=(0, 2))
    for line in lines:
        note = line.warning if line.ok else line.fix
        table.add_row(_mark(line), line.what, Text(f"{line.found} ({note})" if note else line.found))
    context.console.print(table)
    in_force = _in_force(settings)
    context.console.print(Text("\nsettings in force" if in_force else "\nall settings are at their defaults"))
    for name, entry in in_force.items():
        context.console.print(Text(f"  {name} = {entry['value']}  ({entry['source']})"))


def _mark(line: Line) -> Text:
    if not line.ok:
        return Text("missing", style="red")
    return Text("warning", style="yellow") if line.warning else Text("ok", style="green")


def _check_collectives(context: CommandContext, settings: Settings) -> int:
    """Rank 0 prints what it found; a rank that fails says so itself, and torchrun ends the others."""
    launched, options = read_rank(), settings.plugin_options()
    platform, _ = choose_platform(
        settings["platform"], settings["emulate"], options, context.plugins.catalog, Choices()
    )
    from lsv_doctor.collectives import check_collectives

    for name, found in check_collectives(platform, options, launched):
        if launched.rank == 0:
            context.console.print(Text(f"ok  {name}: {found}"))
    return 0


def _evaluate(context: CommandContext, settings: Settings) -> int:
    """Exit code 1 when a measurement failed."""
    choices, options = Choices(), settings.plugin_options()
    platform, device = choose_platform(
        settings["platform"], settings["emulate"], options, context.plugins.catalog, choices
    )
    for reason in choices.reasons:
        context.console.print(Text(f"{reason.name} {reason.value}: {reason.why}"))
    rows: list[Row] = []
    with Console(stderr=True).status(f"opening {device.name}") as status:
        for row in evaluate(platform, options, context.plugins.names, status.update, emulate=settings["emulate"]):
            rows.append(row)
    if settings["json"]:
        context.console.print_json(data=[{"unit": row.unit, "ratio": row.ratio, **_plain(row)} for row in rows])
    else:
        _show_rows(context, rows)
    if settings["csv"]:
        write_csv(Path(settings["csv"]), rows)
    return 0 if all(row.value is not None for row in rows) else 1


def _plain(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _show_rows(context: CommandContext, rows: list[Row]) -> None:
    for device, of_device in groupby(rows, lambda row: row.device):
        table = Table(title=f"\n{device}", title_justify="left")
        for heading in ("metric", "value", "unit", "reference", "ratio", "verdict"):
            table.add_column(heading, no_wrap=heading != "verdict")
        for row in of_device:
            numbers = ("" if number is None else f"{number:.4g}" for number in (row.value, row.reference, row.ratio))
            value, reference, ratio = numbers
            table.add_row(row.metric, value, row.unit, reference, ratio, Text(f"{row.verdict} {row.note}".strip()))
        context.console.print(table)
    if all(row.reference is None for row in rows):
        context.console.print(Text("the platform knows no reference for this device"))
