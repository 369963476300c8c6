"""Harmony, the form of gpt-oss: messages on channels, of which one is for thinking and one for calls.

``<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
<|message|>{…}<|call|>``; the answer stands on the channel ``final``.
"""

from __future__ import annotations

import re

from lsv.request.thinking import Thinking
from lsv.text.answer_parser import AnswerForm, AnswerParser
from lsv_parsers.parts import Parts
from lsv_parsers.reader import Reader
from lsv_parsers.source import Reading, Source, marks_of
from lsv_parsers.thinking import read_thoughts
from lsv_parsers.tools.call import Call
from lsv_parsers.values import copy_value

MAX_HEADER = 512
_START = "<|start|>assistant"
"""The end of prompts. The answer continues with the header of its first message."""
_RECIPIENT = "to="
_BEGINS = ("<|start|>", "<|channel|>")
_MESSAGE = marks_of("<|message|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_FINAL = tuple(f"<|channel|>final{form}<|message|>" for form in ("", " <|constrain|>json", "<|constrain|>json"))
"""How the answer itself begins."""
_FUNCTION = re.compile(r"to=functions\.([^\s<]+)")


def tools(form: AnswerForm) -> AnswerParser:
    """Reads calls, and thoughts where no other parser has taken them before."""
    return Reader(lambda source, parts: _Messages(source, parts, form, calls=True).read())


class HarmonyThinking:
    """Reads thoughts, and leaves calls as they are for the parser behind it."""

    def __call__(self, form: AnswerForm) -> AnswerParser:
        return Reader(lambda source, parts: _Messages(source, parts, form, calls=False).read())

    def thoughts_after(self, prompt_end: str) -> Thinking | None:
        """All that comes before the final message counts as thoughts. None where the prompt has begun that."""
        if prompt_end.rstrip().endswith(_FINAL):
            return None
        return Thinking(begins=_BEGINS, ends=_FINAL, close=f"<|end|><|start|>assistant{_FINAL[0]}", open=True)


thinking = HarmonyThinking()


class _Messages:
    """The messages of one answer. Without ``calls``, those to functions are text, with their marks."""

    def __init__(self, source: Source, parts: Parts, form: AnswerForm, *, calls: bool) -> None:
        self._source = source
        self._parts = parts
        self._form = form
        self._calls = calls
        self._marks = marks_of(*_BEGINS, *_ENDS, *form.hidden)

    def read(self) -> Reading[None]:
        if self._form.prompt_end.rstrip().endswith(_START):
            yield from self._first_message()
        while mark := (yield from self._source.until(self._marks, self._parts.text)):
            if mark in _BEGINS:
                yield from self._message(mark)

    def _first_message(self) -> Reading[None]:
        """Read the message whose header the prompt has begun; its recipient precedes any channel."""
        self._source.record()
        yield from self._source.skip()
        addressed = yield from self._source.stands((_RECIPIENT,))
        before = self._source.recorded()
        if addressed:
            yield from self._message(before)
        else:
            self._parts.text(before)

    def _message(self, mark: str) -> Reading[None]:
        """Read a message from its header on, after ``mark``."""
        found = yield from self._source.head(_MESSAGE, MAX_HEADER)
        if found is None:
            self._parts.text("" if mark in _BEGINS else mark)
            return
        header, end = found
        self._source.take(len(end))
        function = _FUNCTION.search(header)
        if function is not None and self._calls:
            yield from self._call(function[1])
        elif function is not None:
            self._parts.text(mark + header + end)
            self._parts.text((yield from self._source.until(marks_of(*_ENDS), self._parts.text)))
        elif "analysis" in header:
            yield from read_thoughts(self._source, self._parts, _ENDS, self._marks)
        else:
            self._parts.border()

    def _call(self, name: str) -> Reading[None]:
        call = Call(self._source, self._parts, self._form.tools, known_only=False)
        self._source.record()
        yield from self._source.skip()
        stands = (yield from self._source.peek()) == "{"
        self._parts.text(self._source.recorded())
        if stands:
            call.begin(name)
            yield from copy_value(self._source, call.arguments)
        self._parts.border()
