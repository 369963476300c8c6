"""Messages with a recipient: thoughts go to the model itself, calls to a function, answers to the user."""

from __future__ import annotations

from dataclasses import dataclass

from lsv.request.thinking import Thinking
from lsv.text.answer_parser import AnswerForm, AnswerParser
from lsv_parsers.parts import Parts
from lsv_parsers.reader import Reader
from lsv_parsers.source import Reading, Source, marks_of
from lsv_parsers.thinking import read_thoughts
from lsv_parsers.tools.call import Call
from lsv_parsers.values import copy_value

MAX_HEADER = 512


@dataclass(frozen=True)
class AddressedThinking:
    """Reads thoughts, and removes the headers of all messages: ``start``, ``to``, a recipient, ``head_end``.

    Prompts end with ``start``, so the first header lacks it.
    """

    start: str
    to: str
    head_end: str
    ends: tuple[str, ...]
    itself: str
    user: str

    def __call__(self, form: AnswerForm) -> AnswerParser:
        return Reader(lambda source, parts: self._read(source, parts, form))

    def thoughts_after(self, prompt_end: str) -> Thinking | None:
        """Everything before the message for the user counts as thoughts."""
        answer = f"{self.to}{self.user}{self.head_end}"
        if prompt_end.endswith(answer):
            return None
        begin = f"{self.to}{self.itself}{self.head_end}"
        return Thinking(begins=(begin,), ends=(answer,), close=f"{self.ends[0]}{self.start}{answer}", open=True)

    def _read(self, source: Source, parts: Parts, form: AnswerForm) -> Reading[None]:
        marks = marks_of(self.start, *self.ends, *form.hidden)
        source.record()
        opened = form.prompt_end.endswith(self.start) and (yield from source.stands((self.to,)))
        source.recorded()
        while True:
            if opened:
                yield from self._message(source, parts, form)
            mark = yield from source.until(marks, parts.text)
            if not mark:
                return
            opened = mark == self.start

    def _message(self, source: Source, parts: Parts, form: AnswerForm) -> Reading[None]:
        """Read a header, and thoughts if they follow."""
        found = yield from source.head(marks_of(self.head_end), MAX_HEADER)
        if found is None:
            return
        source.take(len(self.head_end))
        parts.border()
        if found[0].strip() != f"{self.to}{self.itself}".strip():
            return
        yield from read_thoughts(source, parts, self.ends, marks_of(*self.ends, *form.hidden))


muse_glimmer = AddressedThinking(
    start="<|start|>assistant", to=" to=", head_end="<|message|>", ends=("<|eom|>", "<|eot|>"), itself="self",
    user="user",
)  # fmt: skip


@dataclass(frozen=True)
class AddressedCalls:
    """Reads ``>>>f`` and a line break, and then the arguments of ``f`` as JSON. Text is addressed to ``everyone``.

    Prompts may end with ``begin``, so the first one may be missing.
    """

    begin: str
    everyone: str

    def __call__(self, form: AnswerForm) -> AnswerParser:
        return Reader(lambda source, parts: self._read(source, parts, form))

    def _read(self, source: Source, parts: Parts, form: AnswerForm) -> Reading[None]:
        marks = marks_of(self.begin, *form.hidden)
        if form.prompt_end.rstrip().endswith(self.begin):
            yield from self._message(source, parts, form, "")
        while mark := (yield from source.until(marks, parts.text)):
            if mark == self.begin:
                yield from self._message(source, parts, form, mark)

    def _message(self, source: Source, parts: Parts, form: AnswerForm, mark: str) -> Reading[None]:
        """Read a recipient's line after the ``mark``, and the arguments of a call. Anything else becomes text."""
        source.record(mark)
        yield from source.comes(self.begin)
        found = yield from source.head(marks_of("\n"), MAX_HEADER)
        call = Call(source, parts, form.tools, known_only=True)
        if found is None or not (found[0] == self.everyone or call.may_be(found[0])):
            parts.text(source.recorded())
            return
        source.take(1)
        parts.border()
        if found[0] == self.everyone:
            source.recorded()
            return
        yield from source.skip()
        if (yield from source.peek()) != "{":
            parts.text(source.recorded())
            return
        call.begin(found[0])
        yield from copy_value(source, call.arguments)
        parts.border()


functionary_v3_2 = AddressedCalls(begin=">>>", everyone="all")
