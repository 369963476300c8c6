"""Inkling's answers are blocks of thoughts, texts and calls.

``<|message_model|><|content_thinking|>…<|end_message|><|message_model|><|content_text|>…<|end_message|>
<|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {…}}<|end_message|>``; prompts end with
``<|message_model|>``. Source of the form: vLLM's tests/parser/engine/test_inkling.py.
"""

from __future__ import annotations

from lsv.request.thinking import Thinking
from lsv.text.answer_parser import AnswerForm, AnswerParser
from lsv_parsers.parts import Parts
from lsv_parsers.reader import Reader
from lsv_parsers.source import Reading, Source, marks_of
from lsv_parsers.thinking import Trimmed
from lsv_parsers.tools.call import Call
from lsv_parsers.tools.json_call import JsonCall

MAX_HEADER = 300
"""Limit on a function's name before the block of its call."""
_MESSAGE = "<|message_model|>"
_TEXT, _THINKING, _CALL = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"
_OTHER = ("<|content_invoke_tool_text|>", "<|content_tool_error|>")
"""Kinds of blocks that are shown as text."""
_KINDS = (_TEXT, _THINKING, _CALL, *_OTHER)
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
MARKS = (_MESSAGE, *_KINDS, *_ENDS)
_FORM = JsonCall(("name",), ("args",))


def tools(form: AnswerForm) -> AnswerParser:
    """Reads calls, and thoughts unless another parser has already removed them."""
    return Reader(lambda source, parts: _Blocks(source, parts, form, calls=True).read())


class InklingThinking:
    """Reads thoughts, and leaves calls for the next parser."""

    def __call__(self, form: AnswerForm) -> AnswerParser:
        return Reader(lambda source, parts: _Blocks(source, parts, form, calls=False).read())

    def thoughts_after(self, prompt_end: str) -> Thinking | None:
        """Everything before the text counts as thoughts. None if the prompt has begun the text."""
        if prompt_end.rstrip().endswith(_TEXT):
            return None
        return Thinking(begins=(_THINKING,), ends=(_TEXT,), close=f"{_ENDS[0]}{_MESSAGE}{_TEXT}", open=True)


thinking = InklingThinking()


class _Blocks:
    """The blocks of one answer. Without ``calls``, blocks with calls are text, including their marks."""

    def __init__(self, source: Source, parts: Parts, form: AnswerForm, *, calls: bool) -> None:
        self._source = source
        self._parts = parts
        self._form = form
        self._calls = calls
        self._marks = marks_of(*MARKS, *form.hidden)

    def read(self) -> Reading[None]:
        end = self._form.prompt_end.rstrip()
        if end.endswith(_THINKING) and not self._calls:  # the parser of thoughts has removed all of them
            yield from self._thoughts()
        elif end.endswith(_MESSAGE):
            yield from self._header()
        while mark := (yield from self._source.until(self._marks, self._parts.text)):
            if mark == _MESSAGE:
                yield from self._header()
            elif mark in _KINDS:
                yield from self._block(mark)

    def _header(self) -> Reading[None]:
        """Skip a function's name, which the call in the block repeats. Anything else is text without a kind."""
        found = yield from self._source.head(marks_of(*_KINDS, *_ENDS), MAX_HEADER)
        if found is None:
            return
        header, mark = found
        names_call = mark == _CALL and header.strip() in self._form.tools
        if not names_call:
            self._parts.text(header)

    def _block(self, kind: str) -> Reading[None]:
        if kind == _THINKING:
            yield from self._thoughts()
        elif kind != _CALL:
            self._parts.border()
        elif self._calls:
            yield from self._call()
        else:
            self._parts.text(kind)
            self._parts.text((yield from self._source.until(marks_of(*_ENDS), self._parts.text)))

    def _thoughts(self) -> Reading[None]:
        """Read thoughts up to the mark that ends the block. A call ends it, too."""
        show = Trimmed(self._parts)
        self._parts.thinking = True
        mark = " "
        while mark and mark not in (*_ENDS, _CALL):
            mark = yield from self._source.until(self._marks, show)
        self._parts.thinking = False
        self._parts.border()
        if mark == _CALL:
            yield from self._block(mark)

    def _call(self) -> Reading[None]:
        call = Call(self._source, self._parts, self._form.tools, known_only=False)
        self._source.record(_CALL)
        yield from self._source.skip()
        while (yield from self._source.comes(_CALL)):  # a repeated mark counts once
            yield from self._source.skip()
        if not (yield from _FORM.read(call)) and not call.begun:
            self._parts.text(self._source.recorded())
            return
        self._parts.border()
