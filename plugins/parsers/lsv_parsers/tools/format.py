"""The marks around calls, and the reader that finds calls by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lsv.text.answer_parser import AnswerForm, AnswerParser
from lsv_parsers.parts import Parts
from lsv_parsers.reader import Reader
from lsv_parsers.source import Reading, Source, marks_of
from lsv_parsers.tools.call import Call, CallForm


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes calls: ``begins``, calls of the form ``call``, and one of ``ends`` or none."""

    call: CallForm
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    separators: str = ""
    """Characters that may stand around and between calls."""
    bare: str = ""
    """An answer that begins with one of these characters may be calls without a mark."""
    doubtful: tuple[str, ...] = ()
    """Those of ``begins`` that other text has too: what follows is a call only of a tool that was offered."""
    silent: tuple[str, ...] = ()
    """Marks around groups of calls, which are left out."""
    single: bool = False
    """Whether each call has a mark of its own."""
    own: tuple[str, ...] = ()
    """The beginning of the form ``call``, if models may omit the mark before it.

    Without the mark, only calls of offered tools count."""

    def __call__(self, form: AnswerForm) -> AnswerParser:
        return Reader(lambda source, parts: _Answer(self, form, source, parts).read())


class _Answer:
    """One answer, read from its beginning."""

    def __init__(self, format: ToolFormat, form: AnswerForm, source: Source, parts: Parts) -> None:
        self._format = format
        self._form = form
        self._source = source
        self._parts = parts
        hidden = [mark for mark in form.hidden if mark not in format.ends]
        self._hidden = frozenset(hidden) - set(format.begins)
        self._marks = marks_of(*format.begins, *format.own, *format.silent, *hidden)
        self._separators = frozenset(format.separators)

    def read(self) -> Reading[None]:
        if self._format.bare:
            yield from self._open()
        while mark := (yield from self._source.until(self._marks, self._parts.text, reads=False)):
            if mark in self._format.own:
                self._source.record()
                yield from self._calls(known_only=True)
                continue
            self._source.take(len(mark))
            if mark in self._format.begins:
                self._source.record(mark)
                yield from self._calls(known_only=mark in self._format.doubtful)
            elif mark in self._format.silent:
                self._parts.border()

    def _open(self) -> Reading[None]:
        """Read the beginning of an answer, which may be calls without a mark."""
        self._source.record()
        yield from self._source.skip()
        if (yield from self._source.peek()) in tuple(self._format.bare):
            yield from self._calls(known_only=True)
        else:
            self._parts.text(self._source.recorded())

    def _calls(self, *, known_only: bool) -> Reading[None]:
        """Read calls up to the mark that ends them. What is none becomes text, from the last call on."""
        found = 0
        while True:
            yield from self._between()
            if found and (yield from self._comes(self._format.ends)):
                self._source.recorded()
                self._parts.border()
                return
            if (yield from self._source.stands(self._format.begins)):
                if found:
                    self._give_up(separators=True)
                else:
                    self._source.recorded()  # a repeated mark counts once
                return
            call = Call(self._source, self._parts, self._form.tools, known_only=known_only)
            if (found and self._format.single) or not (yield from self._format.call.read(call)):
                self._give_up(separators=bool(found))
                return
            found += 1
            self._parts.border()
            self._source.record()

    def _between(self) -> Reading[None]:
        while True:
            yield from self._source.skip()
            if (yield from self._source.stands(self._format.begins)):
                return
            if (yield from self._source.peek()) not in self._separators:
                return
            self._source.take(1)

    def _comes(self, marks: Sequence[str]) -> Reading[bool]:
        for mark in marks:
            if (yield from self._source.comes(mark)):
                return True
        return False

    def _give_up(self, *, separators: bool) -> None:
        text = self._source.recorded()
        if separators:
            text = text.lstrip(self._format.separators + " \t\r\n")
        for mark in self._hidden:
            text = text.replace(mark, "")
        self._parts.text(text)


@dataclass(frozen=True)
class EitherCall:
    """One of two forms, by the first character: ``first`` where that is one of ``characters``."""

    characters: str
    first: CallForm
    second: CallForm

    def read(self, call: Call) -> Reading[bool]:
        character = yield from call.source.peek()
        form = self.first if character and character in self.characters else self.second
        return (yield from form.read(call))
