"""Regular expressions from files: no pattern may take more than linear time, or more than its file's share of time.

RE2 matches a pattern that is written in the syntax it shares with Python's ``re``: in linear time, whatever the
pattern. A pattern with lookarounds or backreferences goes to the ``regex`` package, whose matches have a time limit.
Both match as ``re`` does. A pattern whose meaning may differ between them is refused.
"""

from __future__ import annotations

import math
import re
import time
from typing import Any, Literal

import re2
import regex

from lsv.errors import CheckpointError

SECONDS = 5.0
"""For all matches of the patterns of one file together."""
LONGEST = 8192
"""Characters of a pattern."""
_LONGEST_SUBJECT = 4096
_MOST = 20_000
"""Patterns of a file."""
_MEMORY = 4 << 20
"""Bytes that RE2 may take for a pattern."""
_MOST_REPEATS = 1000
"""``regex`` writes counted repeats out while it compiles: the product of their counts bounds its memory."""

_PUNCTUATION = r"\\[!-/:-@\[-`{-~]"
_SHARED = re.compile(
    rf"(?:\(\?[is]+\))?(?:\\[dDwWsSbBAnrtfv]|{_PUNCTUATION}"
    rf"|\[\^?\]?(?:\\[dDwWsSnrtfv]|{_PUNCTUATION}|[^\\\[\]])*+\]"
    r"|\((?!\?)|\(\?(?:P<[a-zA-Z_]\w*>|[is]*:)|\{\d{1,4}(?:,\d{0,4})?\}|[^\\\[({])*+"
)
"""The syntax with one meaning in ``re`` and in RE2."""
_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_AMBIGUOUS = re.compile(r"\[:|\[\[|\{(?!\d*,?\d*\})|\{\}|(?<=.)\(\?[a-zA-Z]+\)")
"""Taken literally or refused by ``re``; a class, an approximate match or a flag in ``regex``."""

_Search = Literal["match", "fullmatch", "search"]


class Patterns:
    """Compiles the patterns of one file, named ``where`` in messages, and bounds the time of all their matches."""

    def __init__(self, where: str, seconds: float | None = None) -> None:
        self.where = where
        self.left = SECONDS if seconds is None else seconds
        self._count = 0

    def compile(self, text: str, key: str = "") -> Pattern:
        """The pattern ``text``, found under ``key`` of the file.

        Raises ``CheckpointError`` for text that is not a regular expression, and for one that can't be bounded."""
        self._count += 1
        if self._count > _MOST:
            raise CheckpointError(f"{self.where}: more than {_MOST} regular expressions: list names instead")
        return Pattern(text, self, key)


class Pattern:
    """A regular expression with the searches of ``re``. They raise ``CheckpointError`` once the file's time is up."""

    def __init__(self, text: str, patterns: Patterns, key: str = "") -> None:
        self.text, self._patterns = text, patterns
        self._where = f"{patterns.where}: {key}" if key else patterns.where
        if len(text) > LONGEST:
            raise self._refusal(f"has {len(text)} characters, at most {LONGEST} are taken: write several shorter ones")
        self._linear = _compile_linear(text)
        self._limited: Any = None
        if self._linear is None:
            self._limited = self._compile_limited()

    def __str__(self) -> str:
        return self.text

    def match(self, subject: str) -> bool:
        """Whether it matches at the beginning."""
        return self._run("match", subject)

    def fullmatch(self, subject: str) -> bool:
        return self._run("fullmatch", subject)

    def search(self, subject: str) -> bool:
        """Whether it matches anywhere."""
        return self._run("search", subject)

    def _run(self, search: _Search, subject: str) -> bool:
        if len(subject) > _LONGEST_SUBJECT:
            raise CheckpointError(f"{self._where}: a name of {len(subject)} characters is not one of a module")
        if self._linear is not None and not (subject.isascii() and subject.isprintable()):
            self._linear, self._limited = None, self._compile_limited()  # RE2 has other classes of letters
        began = time.perf_counter()
        try:
            if self._linear is not None:
                return getattr(self._linear, search)(subject) is not None
            return getattr(self._limited, search)(subject, timeout=max(self._patterns.left, 1e-6)) is not None
        except TimeoutError:
            self._patterns.left = 0.0
            return False
        finally:
            self._patterns.left -= time.perf_counter() - began
            if self._patterns.left <= 0:
                raise self._refusal(
                    "takes too long to match: write it without nested repetition, lookarounds and backreferences, or "
                    "list the names of modules"
                )

    def _compile_limited(self) -> Any:
        if _AMBIGUOUS.search(self.text):
            raise self._refusal(
                "is not a regular expression with one meaning: write \\[: and \\{ for these characters themselves, and "
                "flags such as (?i) at the beginning"
            )
        counts = [int(number or 1) for pair in _COUNTED.findall(self.text) for number in pair]
        if math.prod(max(count, 1) for count in counts) > _MOST_REPEATS:
            raise self._refusal(f"repeats over {_MOST_REPEATS} times, which is only taken without lookarounds")
        try:
            return regex.compile(self.text, regex.VERSION0)
        except (regex.error, OverflowError, RecursionError, MemoryError) as cause:
            raise self._refusal(f"is not a regular expression: {cause}") from cause

    def _refusal(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: the pattern {self.text!r:.100} {why}")


def _compile_linear(text: str) -> Any:
    """The pattern as RE2 has it; None where it may mean something else there."""
    if not (text.isascii() and text.isprintable() and _SHARED.fullmatch(text)):
        return None
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        return re2.compile(text, options)
    except re2.error:
        return None
