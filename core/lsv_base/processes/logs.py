"""Logging to stderr, a line an event, or as an operator's file says."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lsv_base.errors import ConfigError

_FOREIGN, _OWN = "vllm", "lsv"


def log_lines(form: str, level: str | None, packages: Iterable[str]) -> None:
    """Log a line of this form for each event on stderr, unless logging is set up already.

    ``level`` is how much ``packages`` log. Other packages only warn, and all do if it is None.
    """
    logging.basicConfig(level=logging.WARNING, format=form)
    if level is not None:
        for package in packages:
            logging.getLogger(package).setLevel(level.upper())


def apply_file(file: str, packages: Iterable[str]) -> None:
    """Set logging up as a file says. What it says of ``lsv`` holds for all ``packages``.

    Raises ``ConfigError`` for a file that can't be used.
    """
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
