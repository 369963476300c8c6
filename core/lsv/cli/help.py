"""The help of a command: its settings by group, with defaults and variables."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lsv.settings import Declared, Setting


def show_settings(console: Console, command: str, summary: str, declared: Declared) -> None:
    plain = " [MODEL]" if "model" in declared.by_name else ""
    console.print(Text(f"usage: lsv {command}{plain} [options]\n\n{summary}"))
    ordered = sorted(declared, key=_heading_order)
    for heading, settings in groupby(ordered, key=_heading):
        console.print(Text(f"\n{heading}", style="bold"))
        table = Table.grid(padding=(0, 2))
        for setting in settings:
            table.add_row(Text(f"  {_spelling(setting)}"), Text(_explanation(setting)))
        console.print(table)
    console.print(
        "\nOptions may be cut short where that is unambiguous, and written with underscores.", highlight=False
    )


def _heading(setting: Setting) -> str:
    if setting.group:
        return setting.group
    plugin, dot, _ = setting.name.partition(".")
    return f"Plugin {plugin}" if dot else "This command"


def _heading_order(setting: Setting) -> tuple[int, str]:
    """A command's own settings first, the core's in their order, the plugins' by name, then the common ones."""
    heading = _heading(setting)
    if setting.scope == "all":
        return (3, heading) if setting.group else (0, heading)
    return (2, heading) if "." in setting.name else (1, "")


def _spelling(setting: Setting) -> str:
    names = ", ".join((*setting.short, *(f"--{key}" for key in setting.keys)))
    if setting.type == "bool":
        return f"{names} / --no-{setting.flag[2:]}" if setting.default else names
    value = "|".join(setting.choices) if 0 < len(setting.choices) < 4 else setting.type.upper()
    return f"{names} {value}"


def _explanation(setting: Setting) -> str:
    notes = []
    if len(setting.choices) >= 4:
        notes.append(f"one of {', '.join(setting.choices)}")
    if setting.default not in (None, False, "", ()):
        default = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        notes.append(f"default {default}")
    notes.append(", ".join((setting.variables[0], *setting.env)))
    return f"{setting.help} [{'; '.join(notes)}]"
