"""Samples of traffic: how long prompts and answers are."""

from __future__ import annotations

import json
from pathlib import Path

from lsv.platform import Traffic
from lsv_base.errors import ConfigError


def read_traffic(file: str) -> tuple[Traffic, ...]:
    """The requests of a JSONL file, one ``{"prompt": tokens, "output": tokens}`` a line.

    Raises ``ConfigError`` naming the line that is not one.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"traffic file {file} can't be read: {cause}", param="traffic") from cause
    requests = tuple(_read(line, f"{file}:{number}") for number, line in enumerate(lines, start=1) if line.strip())
    if not requests:
        raise ConfigError(f"traffic file {file} holds no request", param="traffic")
    return requests


def _read(line: str, place: str) -> Traffic:
    wanted = '{"prompt": tokens, "output": tokens} with whole numbers from 1'
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    counts = [found.get(key) for key in ("prompt", "output")] if isinstance(found, dict) else [None]
    if not all(type(count) is int and count > 0 for count in counts):
        raise ConfigError(f"{place}: expected {wanted}, got {line[:80]!r}", param="traffic")
    return Traffic(*counts)
