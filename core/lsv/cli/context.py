"""What a command is given: the plugins, the settings it asks for, and the console."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from lsv.plugins import Plugins, load, logs, packages
from lsv.settings import Declared, Given, Setting, Settings, dashed, gather, neutral, options, unknown_variables
from lsv.settings.flags import CommandLine, is_flag, parse
from lsv_base.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


JSON = Setting(name="json", type="bool", default=False, help="print JSON", scope="all")
"""The option of every command that prints a table."""


_AHEAD = ("config", *(setting.name for setting in options.CHOOSING))
"""The settings that are read before plugins are loaded."""


class HelpWanted(Exception):
    """A command was asked for its help. Carries the command's settings and the requested subject.

    ``subject`` is ``"all"``, a group or a setting; empty for what matters most. ``usage`` are the plain arguments.
    """

    def __init__(self, declared: Declared, subject: str = "", usage: str = "") -> None:
        self.declared = declared
        self.subject = subject
        self.usage = usage


class CommandContext:
    """Everything a command may use. One for each run of ``lsv``.

    ``warns`` is False for commands that show broken plugins themselves.
    """

    def __init__(self, plugins: Plugins, chosen: Settings, *, warns: bool = True) -> None:
        self.plugins = plugins
        self._chosen = chosen
        self._warns = warns
        self._warned: set[str] = set()

    @classmethod
    def open(cls, arguments: Sequence[str], *, warns: bool = True) -> CommandContext:
        """Load the plugins that the command line, the environment or the config file ask for."""
        chosen = choose_plugins(arguments)
        plugins = load(chosen["plugins"], chosen["no_plugin"] or (), chosen["extra_plugins"])
        return cls(plugins, chosen, warns=warns)

    @cached_property
    def console(self) -> Console:
        from lsv.cli.console import TableConsole

        return TableConsole(highlight=False)

    def settings(
        self,
        arguments: Sequence[str],
        scope: str = "engine",
        extra: Sequence[Setting] = (),
        positional: int = 0,
        usage: str | None = None,
    ) -> Settings:
        """The settings in force for a command.

        ``scope`` ``"engine"`` and ``"serve"`` take their settings and a model as first plain argument, any other only
        the common ones; ``extra`` are the command's own; ``positional`` is how many more plain arguments it takes, and
        ``usage`` how its help writes all of them: ``"[MODEL] [QUESTION]"``. Raises ``ConfigError``.
        """
        of_plugins = self.plugins.settings()
        declared = Declared((*options.for_scope(scope, of_plugins), *extra))
        if wants_help(arguments):
            shown = "[MODEL]" if usage is None and "model" in declared.by_name else usage or ""
            raise HelpWanted(declared, _help_subject(arguments), shown)
        known = (*options.CORE, *of_plugins, *extra)
        line = parse(arguments, declared)
        plain = _take_model(line) if "model" in declared.by_name else line.positional
        if len(plain) > positional:
            raise ConfigError(f"unexpected argument {plain[positional]!r}")
        settings = gather(declared, line.given, file=self._chosen["config"], positional=plain, known=known)
        self._check_chosen(settings)
        self.warn_of_broken()
        logs.adopt(settings, packages())
        settings.hand_on("cache_root")
        for warning in (*neutral.warnings(settings), *unknown_variables(known)):
            self._warn_once(warning)
        return settings

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    def warn_of_broken(self) -> None:
        """Say of each broken plugin, once, that it is."""
        for name, broken in self.plugins.broken.items():
            if self._warns and name not in self._warned:
                self._warned.add(name)
                warn(f"plugin {broken}")

    def _check_chosen(self, settings: Settings) -> None:
        """The plugins were chosen before their settings were known, so by flags written in full only."""
        for name in _AHEAD:
            if settings[name] != self._chosen[name]:
                flag = settings.declared.by_name[name].flag
                raise ConfigError(f"{settings.source(name)}: write {flag} in full", param=name)
        self.plugins.require(settings["plugins"] or ())


def choose_plugins(arguments: Sequence[str]) -> Settings:
    """The common settings that decide what is loaded, read ahead of all others."""
    declared = Declared(setting for setting in options.COMMON if setting.name in _AHEAD)
    line = parse(_about(arguments, declared), declared)
    first = gather(declared, line.given)
    if first["config"] is None:
        return first
    return gather(declared, line.given, file=first["config"], known=None)


def wants_help(arguments: Sequence[str]) -> bool:
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(flag in ("--help", "-h") or flag.startswith("--help=") for flag in flags)


def _help_subject(arguments: Sequence[str]) -> str:
    """What follows ``--help=``."""
    return next((flag.partition("=")[2] for flag in arguments if flag.startswith("--help=")), "")


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _about(arguments: Sequence[str], declared: Declared) -> list[str]:
    """Only those arguments that name one of the settings in full, each with what follows it."""
    kept, keeping = [], False
    for token in arguments:
        if token == "--":
            break
        if is_flag(token):
            keeping = dashed(token.partition("=")[0]).lstrip("-") in declared.by_key
        if keeping:
            kept.append(token)
    return kept


def _take_model(line: CommandLine) -> list[str]:
    """The first plain argument is the model; what is left of them."""
    if not line.positional:
        return []
    model, *rest = line.positional
    if "model" in line.given and line.given["model"].value != model:
        raise ConfigError(f"two models are named, {model} and --model {line.given['model'].value}", param="model")
    line.given["model"] = Given(model, "argument")
    return rest
