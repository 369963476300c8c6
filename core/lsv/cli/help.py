"""The help of a command: its settings by group, with defaults and variables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lsv.cli.context import HelpWanted
from lsv.settings import Declared, Setting, dashed
from lsv_base.errors import ConfigError, suggestion

_ALL = "all"


def show_settings(console: Console, command: str, summary: str, wanted: HelpWanted) -> None:
    """What a command takes: what matters most, or what ``--help=…`` names. Raises ``ConfigError`` for another word."""
    declared = wanted.declared
    plain = f" {wanted.usage}" if wanted.usage else ""
    console.print(Text(f"usage: lsv {command}{plain} [options]\n\n{summary}"))
    shown = _choose(declared, wanted.subject)
    for heading, settings in groupby(sorted(shown, key=_heading_order), key=_heading):
        console.print(Text(f"\n{heading}", style="bold"))
        table = Table.grid(padding=(0, 2))
        for setting in settings:
            table.add_row(Text(f"  {_spelling(setting)}"), Text(_explanation(setting)))
        console.print(table)
    if len(shown) < len(declared.by_name) and not wanted.subject:
        groups = ", ".join(dict.fromkeys(map(_name, map(_heading, sorted(declared, key=_heading_order)))))
        console.print(
            Text(
                f"\nThese are {len(shown)} of {len(declared.by_name)} options. --help=all shows all of them, "
                f"--help=NAME one, and --help=GROUP those of a group: {groups}."
            )
        )
    console.print("\nOptions may be abbreviated if unambiguous, and written with underscores.", highlight=False)


def _choose(declared: Declared, subject: str) -> list[Setting]:
    """The settings to show: those that matter most, all, those of a group, or one."""
    if subject == _ALL:
        return list(declared)
    if not subject:
        return [setting for setting in declared if setting.main or _is_own(setting)]
    asked = dashed(subject.lower()).lstrip("-")
    of_group = [setting for setting in declared if asked == _name(_heading(setting))]
    found = of_group or [setting for key, setting in declared.by_key.items() if key == asked]
    if not found:
        names = (_ALL, *map(_name, map(_heading, declared)))
        raise ConfigError(f"--help={subject}: there is no such group or option{suggestion(asked, names)}")
    return found


def _name(heading: str) -> str:
    """How ``--help=`` takes a heading: ``memory-and-kv-cache``, ``cpu`` for "Plugin cpu"."""
    words: Iterable[str] = heading.lower().removeprefix("plugin ").replace(",", "").split()
    return "-".join(words).replace("_", "-")


def _is_own(setting: Setting) -> bool:
    """Whether it belongs to one command."""
    return setting.scope == "all" and not setting.group


def _heading(setting: Setting) -> str:
    if setting.group:
        return setting.group
    plugin, dot, _ = setting.name.partition(".")
    return f"Plugin {plugin}" if dot else "This command"


def _heading_order(setting: Setting) -> tuple[int, str]:
    """A command's own settings first, the core's in their order, the plugins' by name, the common ones, and last those
    that set nothing."""
    heading = _heading(setting)
    if setting.group and setting.neutral is not None:
        return (4, heading)
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
    if setting.default not in (None, False, "", (), {}):
        default = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        notes.append(f"default {default}")
    notes.append(", ".join((setting.variables[0], *setting.env)))
    return f"{setting.help} [{'; '.join(notes)}]"
