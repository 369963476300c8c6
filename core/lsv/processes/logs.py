"""Logging as an operator wants it: a line an event, as a file says, or left alone. The same in all processes."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lsv.errors import ConfigError
from lsv.processes import calls
from lsv.settings import Declared, Settings, gather, options

_FOREIGN, _OWN = "vllm", "lsv"


def set_up(form: str, level: str | None = None, packages: Iterable[str] = (_OWN,)) -> None:
    """Set logging up as this process's variables say; else a line an event, of this form, on stderr.

    Records function calls, too, if ``trace_function`` is set.

    ``level`` is how much ``packages`` log; others only warn. What a file says of ``lsv`` holds for all of them. Raises
    ``ConfigError`` for a file that can't be used.
    """
    chosen = gather(Declared(options.LOGGING), {})
    if chosen["configure_logging"] and chosen["log_config_file"]:
        _apply(chosen["log_config_file"], packages)
    elif chosen["configure_logging"]:
        logging.basicConfig(level=logging.WARNING, format=form)
        if level is not None:
            for package in packages:
                logging.getLogger(package).setLevel(level.upper())
    calls.record_if_asked()


def adopt(settings: Settings, packages: Iterable[str] = (_OWN,)) -> None:
    """Log as a command's settings say, and have the processes it starts do so. Raises ``ConfigError``."""
    file = settings["log_config_file"]
    if not settings["configure_logging"]:
        if settings.source("log_config_file").startswith("flag"):
            raise ConfigError("--log-config-file sets up logging, which is left alone: leave one out")
        if settings.source("configure_logging") not in settings.declared.by_name["configure_logging"].variables:
            logging.getLogger().handlers.clear()  # those that were made before flags were read
    elif file:
        _apply(file, packages)
    else:
        logging.getLogger().setLevel(settings["log_level"].upper())
    for setting in options.LOGGING:
        settings.hand_on(setting.name)
    calls.adopt(settings)


def _apply(file: str, packages: Iterable[str]) -> None:
    try:
        content = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
        logging.config.dictConfig(_as_ours(content, packages))
    except (OSError, ValueError, TypeError, AttributeError, ImportError, RecursionError) as cause:
        raise ConfigError(
            f"log config file {file} can't be used: {cause.__cause__ or cause}; it must hold JSON for Python's "
            "logging.config.dictConfig",
            param="log_config_file",
        ) from cause


def _as_ours(content: dict[str, Any], packages: Iterable[str]) -> dict[str, Any]:
    """A file that was made for vLLM: its loggers' names become ours, its formatters plain ones, and no logger that is
    there already falls silent. Our packages log as ``lsv`` does, unless the file has a logger for them."""
    loggers = {_our_name(name): logger for name, logger in content.get("loggers", {}).items()}
    if _OWN in loggers:
        loggers = dict.fromkeys(packages, loggers[_OWN]) | loggers
    formatters = {
        name: {key: value for key, value in formatter.items() if not _is_foreign(key, value)}
        for name, formatter in content.get("formatters", {}).items()
    }
    return {"disable_existing_loggers": False, **content, "loggers": loggers, "formatters": formatters}


def _our_name(logger: str) -> str:
    first, dot, rest = logger.partition(".")
    return f"{_OWN}{dot}{rest}" if first == _FOREIGN else logger


def _is_foreign(key: str, value: object) -> bool:
    return key in ("class", "()") and str(value).startswith(f"{_FOREIGN}.")
