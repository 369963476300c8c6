"""Text that arrives in pieces, read as if it were there as a whole.

Readers are generators that ``yield`` where they need more text. A reader decides nothing before the text that decides
it has come, so what it makes of an answer does not depend on how the answer was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A reader, and what it returns in the end."""

_SPACE = re.compile(r"[ \t\r\n]*")


class Marks:
    """Texts that are looked for together. Where one begins another, the longer one counts."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.marks = tuple(sorted({mark for mark in marks if mark}, key=len, reverse=True))
        self.longest = len(self.marks[0]) if self.marks else 0
        self._pattern = re.compile(_any_of(self.marks))
        begins = {mark[:size] for mark in self.marks for size in range(1, len(mark))}
        self._begun = re.compile(_any_of(begins) + r"\Z")

    def find(self, text: str, at: int, *, ended: bool) -> tuple[int, int]:
        """Where the first mark begins and ends; both the same where only the text before it is certain.

        A mark is not certain while a longer one may still come of it, before the text has ``ended``.
        """
        found = self._pattern.search(text, at)
        begun = None if ended else self._begun.search(text, max(at, len(text) - self.longest + 1))
        held = len(text) if begun is None else begun.start()
        if found is not None and found.start() < held:
            return found.span()
        return held, held


def _any_of(texts: Iterable[str]) -> str:
    """The pattern of the first of ``texts`` that stands at a place."""
    return f"(?:{'|'.join(map(re.escape, texts)) or '(?!)'})"


@lru_cache(maxsize=256)
def marks_of(*marks: str) -> Marks:
    """The same ``Marks`` for the same texts."""
    return Marks(marks)


class Source:
    """The text of an answer from the place where it is read; what was read is forgotten, unless it is recorded."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.scanned = 0
        """Characters that were looked at, for those who count."""
        self._record: list[str] | None = None

    def push(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.at = 0
        self.scanned += len(self.text)

    def record(self, text: str = "") -> None:
        """Remember all that is read from here on, behind ``text``."""
        self._record = [text]

    def recorded(self) -> str:
        """What was read since ``record``, which ends here."""
        found = "".join(self._record or ())
        self._record = None
        return found

    def take(self, count: int) -> str:
        """The next characters, which are there."""
        found = self.text[self.at : self.at + count]
        self.at += len(found)
        if self._record is not None:
            self._record.append(found)
        return found

    @property
    def left(self) -> int:
        """Characters that are there and not read."""
        return len(self.text) - self.at

    def has(self, count: int = 1) -> Reading[bool]:
        """Whether so many characters follow."""
        while self.left < count and not self.ended:
            yield
        return self.left >= count

    def peek(self) -> Reading[str]:
        """The next character; empty at the end."""
        yield from self.has()
        return self.text[self.at : self.at + 1]

    def skip(self, spaces: re.Pattern[str] = _SPACE) -> Reading[None]:
        """Read over white space, or whatever else a pattern takes character by character."""
        while True:
            found = spaces.match(self.text, self.at)
            self.take(found.end() - self.at if found else 0)
            if self.left or self.ended:
                return
            yield

    def comes(self, mark: str) -> Reading[bool]:
        """Whether a mark stands here; it is read then."""
        while self.left < len(mark) and mark.startswith(self.text[self.at :]) and not self.ended:
            yield
        if not self.text.startswith(mark, self.at):
            return False
        self.take(len(mark))
        return True

    def stands(self, marks: Sequence[str]) -> Reading[bool]:
        """Whether one of ``marks`` is next, without reading it."""
        for mark in marks:
            while self.left < len(mark) and mark.startswith(self.text[self.at :]) and not self.ended:
                yield
            if self.text.startswith(mark, self.at):
                return True
        return False

    def until(self, marks: Marks, show: Callable[[str], None], *, reads: bool = True) -> Reading[str]:
        """Show the text up to the first mark, piece by piece, and read the mark if it ``reads``; empty where there is
        none.
        """
        while True:
            start, end = marks.find(self.text, self.at, ended=self.ended)
            if start > self.at:
                show(self.take(start - self.at))
            if end > start:
                return self.take(end - start) if reads else self.text[start:end]
            if self.ended:
                return ""
            yield

    def head(self, marks: Marks, limit: int) -> Reading[tuple[str, str] | None]:
        """The text up to the first mark, and that mark, which is not read yet; None, and nothing read, where there is
        none within ``limit`` characters.
        """
        while True:
            start, end = marks.find(self.text, self.at, ended=self.ended)
            if start - self.at > limit or (self.ended and start == end):
                return None
            if end > start:
                mark = self.text[start:end]
                return self.take(start - self.at), mark
            yield
