"""``lsv models``: which architectures run here, natively or through the generic adapter, and whether they are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from lsv.cli.context import JSON, CommandContext
from lsv.offers import ModelAlias
from lsv.settings import Setting
from lsv_base.errors import ConfigError
from lsv_doctor.models.classes import choose, read_classes
from lsv_doctor.models.orders import COLUMNS, WORDS, Verdict
from lsv_doctor.models.release import warn
from lsv_doctor.models.served import Served, Share, list_served, share

if TYPE_CHECKING:
    from rich.table import Table

_SETTINGS = (
    JSON,
    Setting(
        name="check", type="bool", default=False, scope="all", group="Models",
        help="run tiny random checkpoints of transformers' classes (of those that are named) beside transformers",
    ),
    Setting(name="results", scope="all", group="Models", help="file that --check adds a line of each class to"),
    Setting(
        name="resume", type="bool", default=False, scope="all", group="Models",
        help="leave out the classes that the file of --results has already",
    ),
    Setting(
        name="jobs", type="int", default=2, low=1, scope="all", group="Models", help="classes --check runs at a time"
    ),
    Setting(
        name="seconds", type="float", default=120.0, low=1, scope="all", group="Models",
        help="what --check gives one class, before it counts as a crash",
    ),
)  # fmt: skip
_MOST_NAMES = 1000
_WORDS = {"runs": "pass", "wrong": "FAIL", "crash": "FAIL", "refused": "not supported", "untried": "not tried"}


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="none", extra=_SETTINGS, positional=_MOST_NAMES, usage="[NAME …]")
    if settings["check"]:
        return _check(context, settings)
    for name in ("results", "resume"):
        if settings[name]:
            raise ConfigError(f"--{name} is about what --check finds: give that too", param=name)
    served = _named(list_served(context.plugins.catalog), settings.positional)
    if settings["json"]:
        context.console.print_json(data=msgspec.to_builtins(served))
        return 0
    context.console.print(_table(served))
    if not settings.positional:
        context.console.print(f"{share(served)}; lsv models --check tries them")
        if warning := warn():
            context.console.print(warning)
        for alias in context.plugins.catalog.offers(ModelAlias):
            note = " (served when no model is named)" if alias.default else ""
            context.console.print(f"ships with lsv: {alias.name}{note}")
    return 0


def _named(served: list[Served], names: Sequence[str]) -> list[Served]:
    """Those whose architecture or models have one of the names in them. Raises ``ConfigError`` for none."""
    if not names:
        return served
    wanted = [name.lower() for name in names]
    found = [one for one in served if any(name in f"{one.architecture}\n{one.models}".lower() for name in wanted)]
    if not found:
        raise ConfigError(f"no architecture is called like {' or '.join(names)}; lsv models shows all there are")
    return found


def _table(served: Sequence[Served]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("architecture", "runs", "tasks", "input", "checked", "plugin", "models, notes")
    for one in served:
        notes = Text("; ".join(filter(None, (one.models, one.why, *(f"not {name}: {why}" for name, why in
                                                                    one.unstable.items())))))  # fmt: skip
        table.add_row(
            one.architecture, one.way, ", ".join(one.tasks), ", ".join(one.modalities),
            _checked(one), one.plugin, notes,
        )  # fmt: skip
    return table


def _checked(one: Served) -> str:
    """What a check has found right: text, and the columns of the page."""
    cells = {"text": one.text, **one.cells}
    return ", ".join(column for column in ("text", *COLUMNS) if cells.get(column) == "yes")


# Checks


def _check(context: CommandContext, settings: Any) -> int:
    """Exit code 1 when a class is wrong or crashes."""
    from lsv_doctor.models.results import append, read_results
    from lsv_doctor.models.runs import check_all

    if settings["resume"] and not settings["results"]:
        raise ConfigError("--resume goes on with a file: name it with --results", param="resume")
    file = Path(settings["results"]) if settings["results"] else None
    chosen = choose(read_classes(), settings.positional)
    done = read_results(file) if file is not None and settings["resume"] and file.exists() else {}
    verdicts = {one.architecture: done[one.architecture] for one in chosen if one.architecture in done}
    lock = Lock()

    def report(verdict: Verdict) -> None:
        with lock:
            verdicts[verdict.architecture] = verdict
            if file is not None:
                append(file, [verdict])
            if not settings["json"]:
                _show(context, verdict)

    orders = [one.order for one in chosen if one.architecture not in verdicts]
    check_all(orders, report, jobs=settings["jobs"], seconds=settings["seconds"])
    if settings["json"]:
        context.console.print_json(data=msgspec.to_builtins(list(verdicts.values())))
    else:
        found = list(verdicts.values())
        context.console.print(str(Share(sum(verdict.state == "runs" for verdict in found), len(found))))
    return 1 if any(verdict.failed for verdict in verdicts.values()) else 0


def _show(context: CommandContext, verdict: Verdict) -> None:
    from rich.text import Text

    cells = [f"{column} {WORDS[cell]}" for column, cell in verdict.cells.items() if cell != "none"]
    reasons = [f"{column}: {why}" for column, why in verdict.reasons.items()]
    said = "; ".join(filter(None, (verdict.detail, ", ".join(cells), *reasons)))
    detail = f": {said}" if said else ""
    context.console.print(
        Text(f"{_WORDS[verdict.state]:13} {verdict.architecture} ({verdict.seconds:g} s){detail}"), soft_wrap=True
    )
