"""``lsv plugins``: what is installed and what it offers; ``lsv plugins check PATH``: does a folder hold a fit one?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from lsv.cli.context import JSON, CommandContext
from lsv.offers import load_object
from lsv.plugins import Plugins
from lsv.plugins.catalog import KINDS
from lsv.settings import Setting
from lsv_base.errors import ConfigError

_SETTINGS = (
    JSON,
    Setting(name="offers", type="bool", default=False, help="name every offer", scope="all"),
)

Offers = dict[str, dict[str, list[str]]]
"""Plugin → kind of offer → names."""


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="none", extra=_SETTINGS, positional=2, usage="[check FOLDER]")
    if settings.positional:
        return _check(settings.positional, context)
    offers = _offers(context.plugins)
    if settings["json"]:
        context.console.print_json(data=_as_json(context.plugins, offers))
    else:
        _show(context, offers, named=settings["offers"])
    return 0


def _offers(plugins: Plugins) -> Offers:
    """Everything every plugin declares; reading it is also what finds implementations that fail."""
    found: Offers = {name: {} for name in plugins.names}
    for kind, (hook, noun) in KINDS.items():
        for entry in plugins.catalog.declared(hook, kind):
            name = getattr(entry.thing, "name", None) or f"{entry.thing.op}@{entry.thing.platform}"
            found[entry.plugin].setdefault(noun, []).append(name)
    for setting in plugins.settings():
        owner = next(name for name in found if setting.name.startswith(f"{name.replace('-', '_')}."))
        found[owner].setdefault("setting", []).append(setting.name)
    return found


def _as_json(plugins: Plugins, offers: Offers) -> dict[str, Any]:
    return {
        "plugins": [
            {
                "name": origin.name,
                "distribution": origin.distribution,
                "version": origin.version,
                "module": origin.module,
                "offers": offers[origin.name],
            }
            for origin in plugins.loaded.values()
        ],
        "broken": [
            {
                "name": broken.name,
                "distribution": broken.distribution,
                "version": broken.version,
                "module": broken.module,
                "stale": broken.stale,
                "reason": broken.reason,
                "traceback": broken.traceback,
            }
            for broken in plugins.broken.values()
        ],
    }


def _show(context: CommandContext, offers: Offers, *, named: bool) -> None:
    plugins = context.plugins
    table = Table("plugin", "distribution", "version", "offers")
    for origin in plugins.loaded.values():
        table.add_row(origin.name, origin.distribution, origin.version, _summary(offers[origin.name], named=named))
    context.console.print(table)
    for broken in plugins.broken.values():
        context.console.print(Text(f"broken: {broken}", style="red"), soft_wrap=True)


def _summary(kinds: Mapping[str, list[str]], *, named: bool) -> Text:
    if named:
        return Text("\n".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items()))
    return Text(", ".join(f"{len(names)} {_plural(kind) if len(names) > 1 else kind}" for kind, names in kinds.items()))


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else noun + ("es" if noun.endswith("s") else "s")


def _check(words: tuple[str, ...], context: CommandContext) -> int:
    if words[0] != "check" or len(words) != 2:
        raise ConfigError("use lsv plugins, or lsv plugins check FOLDER")
    check_folder = load_object("lsv_testing.plugins:check_folder")  # it imports what it checks, torch among it

    failed = False
    for finding in check_folder(Path(words[1])):
        mark, style = {True: ("ok", "green"), False: ("failed", "red"), None: ("skipped", "yellow")}[finding.passed]
        detail = f": {finding.detail}" if finding.detail else ""
        context.console.print(Text(f"{mark:8}", style=style) + Text(f"{finding.what}{detail}"), soft_wrap=True)
        failed |= finding.passed is False
    return 1 if failed else 0
