"""``lsv``: find the command, run it, and turn errors into one line and an exit code."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps

from lsv.cli.context import CommandContext, HelpWanted
from lsv.offers import CommandOffer
from lsv.plugins import logs
from lsv_base.errors import ConfigError, LsvError, PluginError, suggestion
from lsv_base.processes.lifeline import end_without_search
from lsv_base.version import __version__

COMMANDS = {
    "serve": ("lsv.cli.serve", "serve a model over an OpenAI-compatible API"),
    "plugins": ("lsv.cli.plugins", "list plugins and what they offer, or check one"),
}
"""Command → (module with ``run(arguments, context)``, help)."""

log = logging.getLogger(__name__)

Command = Callable[[list[str], CommandContext], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    end_without_search()
    try:
        logs.set_up("%(levelname)s %(name)s: %(message)s")
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except LsvError as error:
        _print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of our output left; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("--version", "-V", "version"):
        print(f"lsv {__version__}")
        return 0
    context = CommandContext.open(arguments[1:], warns=arguments[:1] not in (["plugins"], ["doctor"]))
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        _show_commands(context)
        return 0 if arguments else 2
    command = _find(arguments[0], context)
    context.warn_of_broken()
    try:
        return command(arguments[1:], context)
    except HelpWanted as wanted:
        from lsv.cli.help import show_settings

        show_settings(context.console, arguments[0], _summaries(context)[arguments[0]], wanted)
        return 0
    finally:
        context.warn_of_broken()


def _find(name: str, context: CommandContext) -> Command:
    if name in COMMANDS:
        command: Command = importlib.import_module(COMMANDS[name][0]).run
        return command
    known = _summaries(context)
    if name not in known:
        hint = suggestion(name, known) or "; lsv --help lists the commands"
        if context.plugins.broken:
            context.plugins.catalog.find(CommandOffer, name)
        raise ConfigError(f"there is no command {name!r}{hint}")
    catalog = context.plugins.catalog
    offer = catalog.find(CommandOffer, name)
    return _guarded(catalog.load(offer), f"command {name} of plugin {catalog.provider(offer)}")


def _guarded(command: Command, what: str) -> Command:
    """The command of a plugin; an error that is none of lsv's gets the plugin's name."""

    @wraps(command)
    def run(arguments: list[str], context: CommandContext) -> int:
        try:
            return command(arguments, context)
        except (LsvError, HelpWanted, BrokenPipeError):
            raise
        except Exception as cause:
            log.exception("%s failed", what)
            raise PluginError(f"{what} failed: {type(cause).__name__}: {cause}") from cause

    return run


def _summaries(context: CommandContext) -> dict[str, str]:
    """Command → help; the built-in ones come first and can't be replaced."""
    built_in = {name: text for name, (_, text) in COMMANDS.items()}
    offered = {offer.name: offer.help for offer in context.plugins.commands()}
    return {**built_in, **{name: text for name, text in offered.items() if name not in built_in}}


def _show_commands(context: CommandContext) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    for name, text in _summaries(context).items():
        table.add_row(f"  [bold]{name}[/bold]", text)
    context.console.print("usage: lsv <command> [options]\n", markup=False)
    context.console.print(table)
    context.console.print("\nlsv <command> --help shows a command's options; lsv --version the version.")
    context.warn_of_broken()


def _print_error(error: LsvError) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"error: {error.message}", style="red"))
