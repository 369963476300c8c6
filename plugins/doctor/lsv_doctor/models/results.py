"""A file of verdicts, a line each, that grows while a check runs, so that an interrupted one goes on where it was."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from lsv_base.errors import ConfigError
from lsv_doctor.models.orders import Verdict


def read_results(path: Path) -> dict[str, Verdict]:
    """The last verdict of each class. Raises ``ConfigError`` for a file that can't be read, or is none of these."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        verdicts = [msgspec.json.decode(line, type=Verdict) for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as cause:
        raise ConfigError(f"--results {path} can't be read: {cause}", param="results") from cause
    return {verdict.architecture: verdict for verdict in verdicts}


def append(path: Path, verdicts: Iterable[Verdict]) -> None:
    """Raises ``ConfigError`` when the file can't be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            for verdict in verdicts:
                file.write(msgspec.json.encode(verdict).decode() + "\n")
    except OSError as cause:
        raise ConfigError(f"--results {path} can't be written: {cause.strerror or cause}", param="results") from cause
