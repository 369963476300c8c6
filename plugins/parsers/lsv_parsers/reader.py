"""The engine under all parsers: feeds a reader with text as it comes, and hands on what it finds."""

from __future__ import annotations

from collections.abc import Callable

from lsv.text.answer_parser import Part
from lsv_parsers.parts import Parts
from lsv_parsers.source import Reading, Source


class Reader:
    """Reads one answer; see ``lsv.text.answer_parser.AnswerParser``."""

    def __init__(self, read: Callable[[Source, Parts], Reading[None]]) -> None:
        self.source = Source()
        self._parts = Parts()
        self._reading = read(self.source, self._parts)

    @property
    def thinking(self) -> bool:
        return self._parts.thinking

    def push(self, text: str) -> list[Part]:
        self.source.push(text)
        next(self._reading, None)
        return self._parts.flush()

    def end(self) -> list[Part]:
        self.source.ended = True
        next(self._reading, None)
        return self._parts.end()
