"""Untrusted regular expressions from files: matches take linear time, or have a time limit.

RE2 matches patterns in the syntax that it shares with Python's ``re``, always in linear time. A pattern with
lookarounds or backreferences goes to the ``regex`` package, whose matches have a time limit. Both match as ``re`` does.
A pattern whose meaning may differ between them is refused.
"""

from __future__ import annotations

import math
import re
import time
from typing import Any, Literal

import re2
import regex

from lsv_base.errors import CheckpointError

SECONDS = 5.0
"""Time limit for all matches of all patterns of one file."""
LONGEST = 8192
"""Maximum length of a pattern in characters."""
_LONGEST_SUBJECT = 4096
_MOST = 20_000
"""Maximum number of patterns in a file."""
_MEMORY = 4 << 20
"""Memory limit of RE2 in bytes, for one pattern."""
_MOST_REPEATS = 1000
"""Limit on the product of repeat counts, because ``regex`` expands counted repeats when it compiles."""

_PUNCTUATION = r"\\[!-/:-@\[-`{-~]"
_SHARED = re.compile(
    rf"(?:\(\?[is]+\))?(?:\\[dDwWsSbBAnrtfv]|{_PUNCTUATION}"
    rf"|\[\^?\]?(?:\\[dDwWsSnrtfv]|{_PUNCTUATION}|[^\\\[\]])*+\]"
    r"|\((?!\?)|\(\?(?:P<[a-zA-Z_]\w*>|[is]*:)|\{\d{1,4}(?:,\d{0,4})?\}|[^\\\[({])*+"
)
"""The syntax that means the same in ``re`` and in RE2."""
_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_AMBIGUOUS = re.compile(r"\[:|\[\[|\{(?!\d*,?\d*\})|\{\}|(?<=.)\(\?[a-zA-Z]+\)")
"""Syntax that is literal or invalid in ``re``, but a class, an approximate match or a flag in ``regex``."""

_Search = Literal["match", "fullmatch", "search"]


class Patterns:
    """Compiles the patterns of one file, called ``where`` in messages, and limits the total time of their matches."""

    def __init__(self, where: str, seconds: float | None = None) -> None:
        self.where = where
        self.left = SECONDS if seconds is None else seconds
        self._count = 0

    def compile(self, text: str, key: str = "") -> Pattern:
        """The pattern ``text``, found under ``key`` of the file.

        Raises ``CheckpointError`` for an invalid pattern, and for one whose time or memory can't be limited.
        """
        self._count += 1
        if self._count > _MOST:
            raise CheckpointError(f"{self.where} has more than {_MOST} regular expressions: list names instead")
        return Pattern(text, self, key)


class Pattern:
    """A compiled pattern, used as in ``re``. Matching raises ``CheckpointError`` once the file's time is up."""

    def __init__(self, text: str, patterns: Patterns, key: str = "") -> None:
        self.text, self._patterns = text, patterns
        self._where = f"{patterns.where}: {key}" if key else patterns.where
        if len(text) > LONGEST:
            raise self._refusal(f"has {len(text)} characters, over the limit of {LONGEST}: split it into shorter ones")
        self._linear = _compile_linear(text)
        self._limited: Any = None
        if self._linear is None:
            self._limited = self._compile_limited()

    def __str__(self) -> str:
        return self.text

    def match(self, subject: str) -> bool:
        """Whether the pattern matches at the beginning of ``subject``."""
        return self._run("match", subject)

    def fullmatch(self, subject: str) -> bool:
        return self._run("fullmatch", subject)

    def search(self, subject: str) -> bool:
        """Whether the pattern matches anywhere in ``subject``."""
        return self._run("search", subject)

    def _run(self, search: _Search, subject: str) -> bool:
        if len(subject) > _LONGEST_SUBJECT:
            raise CheckpointError(f"{self._where}: a name of {len(subject)} characters is too long for a module name")
        if self._linear is not None and not (subject.isascii() and subject.isprintable()):
            self._linear, self._limited = None, self._compile_limited()  # RE2 has different character classes
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
                    "takes too long to match: avoid nested repetition, lookarounds and backreferences, "
                    "or list module names"
                )

    def _compile_limited(self) -> Any:
        if _AMBIGUOUS.search(self.text):
            raise self._refusal(
                "is ambiguous: write \\[: and \\{ for literal characters, and put flags such as (?i) at the beginning"
            )
        counts = [int(number or 1) for pair in _COUNTED.findall(self.text) for number in pair]
        if math.prod(max(count, 1) for count in counts) > _MOST_REPEATS:
            raise self._refusal(f"repeats over {_MOST_REPEATS} times: lower its repeat counts")
        try:
            return regex.compile(self.text, regex.VERSION0)
        except (regex.error, OverflowError, RecursionError, MemoryError) as cause:
            raise self._refusal(f"is not a regular expression: {cause}") from cause

    def _refusal(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: the pattern {self.text!r:.100} {why}")


def _compile_linear(text: str) -> Any:
    """The pattern compiled by RE2; None if RE2 may interpret it differently."""
    if not (text.isascii() and text.isprintable() and _SHARED.fullmatch(text)):
        return None
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        return re2.compile(text, options)
    except re2.error:
        return None
