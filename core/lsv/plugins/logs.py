"""Logging and recorded function calls as the operator's settings say, the same in all processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from lsv.settings import Declared, Settings, gather, options
from lsv_base.errors import ConfigError
from lsv_base.processes import calls
from lsv_base.processes.logs import apply_file, log_lines

_OWN = ("lsv", "lsv_base")


def set_up(form: str, level: str | None = None, packages: Iterable[str] = _OWN) -> None:
    """Set logging up as this process's variables say; else a line an event, of this form, on stderr.

    Also records function calls if ``trace_function`` is set.

    ``level`` is how much ``packages`` log; others only warn. What a file says of ``lsv`` holds for all of them. Raises
    ``ConfigError`` for a file that can't be used.
    """
    chosen = gather(Declared(options.LOGGING), {})
    if chosen["configure_logging"] and chosen["log_config_file"]:
        apply_file(chosen["log_config_file"], packages)
    elif chosen["configure_logging"]:
        log_lines(form, level, packages)
    record_calls_if_asked()


def adopt(settings: Settings, packages: Iterable[str] = _OWN) -> None:
    """Log as a command's settings say, and have the processes it starts do so. Raises ``ConfigError``."""
    file = settings["log_config_file"]
    if not settings["configure_logging"]:
        if settings.source("log_config_file").startswith("flag"):
            raise ConfigError("--log-config-file sets up logging, which is left alone: leave one out")
        if settings.source("configure_logging") not in settings.declared.by_name["configure_logging"].variables:
            logging.getLogger().handlers.clear()  # those that were made before flags were read
    elif file:
        apply_file(file, packages)
    else:
        logging.getLogger().setLevel(settings["log_level"].upper())
    for setting in options.LOGGING:
        settings.hand_on(setting.name)
    adopt_call_recording(settings)


def record_calls_if_asked() -> None:
    """Record the function calls of this process if its environment sets ``trace_function``."""
    if gather(Declared(options.LOGGING), {})["trace_function"]:
        calls.record()


def adopt_call_recording(settings: Settings) -> None:
    """Record function calls if ``settings`` say so, also in the processes that this one starts."""
    settings.hand_on("trace_function")
    if settings["trace_function"]:
        calls.record()
