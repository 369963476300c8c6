"""Errors in a line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path

_ADVICE = re.compile(r"(; most like it by name: .*|\. docs/developing\.md .*)$", re.DOTALL)
"""What a refusal says to a user besides the reason."""


def reason_of(error: BaseException) -> str:
    """Why lsv refuses something, in a line."""
    return in_a_line(_ADVICE.sub("", str(error)))


def in_words(error: BaseException) -> str:
    """The error in a line, and where it was raised."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    where = f" at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {in_a_line(str(error))}{where}"


def in_a_line(text: str) -> str:
    return " ".join(text.split())[:300]
