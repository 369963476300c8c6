"""Reading answers: what of them is text, what are thoughts, and what are calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator
from typing import Literal

import msgspec

from lsv.request.outputs import Chunk
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.request.thinking import Thinking
from lsv.text.answer_parser import (
    AnswerForm,
    AnswerParser,
    CallArguments,
    CallBegin,
    KnowsThoughts,
    Part,
    Text,
    Thought,
)
from lsv_api.http.context import Served
from lsv_api.http.failures import Unsupported
from lsv_api.openai.tools import Tools
from lsv_api.records.requests import ChatRequest
from lsv_api.records.responses import CalledFunction, Delta, FunctionDelta, MadeToolCall, ToolCallDelta

_LETTERS = string.ascii_letters + string.digits
_PROMPT_END = 256
"""Characters at the end of a prompt, where templates open and close the thinking."""


class AnswerReading:
    """How the answers to one request are read: makes a reader for each."""

    def __init__(self, body: ChatRequest, served: Served, tools: Tools, prompt: str) -> None:
        self._parsing = served.parsing
        self._tools = tools
        self._shows_thoughts = body.include_reasoning is not False
        self._prompt_end = prompt[-_PROMPT_END:]
        self._budget = body.thinking_token_budget
        self._formed = False
        self._special = served.client.tokenizer.special_texts
        self._hidden: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether answers are shown as they are written."""
        return self._parsing.thoughts is None and not self._tools.callable

    @property
    def finds_thoughts(self) -> bool:
        return self._parsing.thoughts is not None

    @property
    def is_named(self) -> bool:
        """Whether answers are the arguments of one function."""
        return self._tools.named is not None

    def show_marks(self, params: SamplingParams) -> SamplingParams:
        """The parameters with which readers see the special tokens among their marks. They hide the others."""
        if self.is_plain or not params.skip_special_tokens or not self._special & self._parsing.marks:
            return params
        self._hidden = tuple(sorted(self._special - self._parsing.marks))
        return params.replace(skip_special_tokens=False)

    def may_begin_thoughts(self, params: SamplingParams) -> Literal["never", "by itself", "always"]:
        """Whether an answer that has a form may begin with thoughts that the prompt has not opened: not at all, if the
        model chooses to, or since this model always thinks.
        """
        make = self._parsing.thoughts
        if params.structured_outputs is None or not isinstance(make, KnowsThoughts):
            return "never"
        found = make.thoughts_after(self._prompt_end)
        if found is None or self._prompt_end.rstrip().endswith(found.begins):
            return "never"
        return "always" if found.open else "by itself"

    def guide_thoughts(self, params: SamplingParams, *, formed: bool) -> Thinking | None:
        """How the answers think, where the engine must know it: a form holds after the thoughts, or from the first
        token on if ``formed``, and a budget bounds them. Raises ``Unsupported`` where a budget can't be kept.
        """
        make = self._parsing.thoughts
        has_form = params.structured_outputs is not None
        if self._budget not in (None, -1) and not isinstance(make, KnowsThoughts):
            raise Unsupported(
                "thinking_token_budget is not available for this model: how it marks its thoughts is not known; start "
                "with --reasoning-parser, or leave it out",
                param="thinking_token_budget",
            )
        self._formed = has_form and (formed or not isinstance(make, KnowsThoughts))
        if self._formed or not isinstance(make, KnowsThoughts) or (self._budget in (None, -1) and not has_form):
            return None
        found = make.thoughts_after(self._prompt_end)
        if found is None:
            self._formed = has_form
            return None
        return msgspec.structs.replace(found, budget=None if self._budget == -1 else self._budget)

    def finish_of(self, reader: AnswerReader | None, finish: FinishReason | None, stop: int | str | None) -> str | None:
        """How an answer ended, as OpenAI says it: ``tool_calls`` only where the model chose to call."""
        waits = waits_for_results(reader, finish, stop)
        return "tool_calls" if waits and not self.is_named else finish

    def begin(self) -> AnswerReader:
        """A reader for one answer."""
        form = AnswerForm(
            tools=self._tools.callable,
            hidden=self._hidden,
            prompt_end=self._prompt_end,
            bounded=self._budget not in (None, -1),
        )
        return AnswerReader(
            self._begin_thoughts(form),
            self._begin_calls(form),
            shows_thoughts=self._shows_thoughts,
            first_only=self._tools.first_only,
            short_ids=self._parsing.short_ids,
        )

    def _begin_thoughts(self, form: AnswerForm) -> AnswerParser | None:
        """A parser of thoughts; answers that have their form from the first token on have none."""
        make = self._parsing.thoughts
        return None if make is None or self._formed else make(form)

    def _begin_calls(self, form: AnswerForm) -> AnswerParser | None:
        make = self._parsing.tools
        if make is not None and self._tools.forced_form is not None:
            return OnlyCalls(make(form))
        if self._tools.named is not None:
            return NamedCall(self._tools.named)
        if self._tools.forced is not None:
            return None if self._parsing.forced is None else OnlyCalls(self._parsing.forced(form))
        return None if make is None or not self._tools.callable else make(form)


def waits_for_results(reader: AnswerReader | None, finish: FinishReason | None, stop: int | str | None) -> bool:
    """Whether an answer ended by itself with calls, and no stop string or token cut the last one."""
    if reader is None or not reader.calls or finish is not FinishReason.STOP:
        return False
    return stop is None or reader.ends_whole


class OnlyCalls:
    """Reads an answer that a grammar holds to calls: a text in it is the beginning of a call that was cut off."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser

    @property
    def thinking(self) -> bool:
        return self._parser.thinking

    def push(self, text: str) -> list[Part]:
        return [part for part in self._parser.push(text) if not isinstance(part, Text)]

    def end(self) -> list[Part]:
        return [part for part in self._parser.end() if not isinstance(part, Text)]


class NamedCall:
    """Reads an answer that is the arguments of one function. The call begins with the first of them."""

    thinking = False

    def __init__(self, name: str) -> None:
        self._name: str | None = name
        """None once the call has begun."""

    def push(self, text: str) -> list[Part]:
        if self._name is None:
            return [CallArguments(text)]
        text = text.lstrip()
        if not text:
            return []
        begun, self._name = CallBegin(self._name), None
        return [begun, CallArguments(text)]

    def end(self) -> list[Part]:
        return []


class AnswerReader:
    """Reads one answer, chunk by chunk, and keeps what it has found."""

    def __init__(
        self,
        thoughts: AnswerParser | None,
        calls: AnswerParser | None,
        *,
        shows_thoughts: bool = True,
        first_only: bool = False,
        short_ids: bool = False,
    ) -> None:
        self.reasoning_tokens = 0
        self.calls: list[MadeToolCall] = []
        self._thoughts_parser = thoughts
        self._calls_parser = calls
        self._is_plain = thoughts is None and calls is None
        self._shows_thoughts = shows_thoughts
        self._first_only = first_only
        self._short_ids = short_ids
        self._undecided = 0
        """Tokens before any thought or text: they may be the mark that thoughts begin with."""
        self._drops = False
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._arguments: list[list[str]] = []

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str | None:
        """What the model thought; None where it did not."""
        return "".join(self._thoughts) or None

    @property
    def ends_whole(self) -> bool:
        """Whether the arguments of the last call are JSON as far as they are written."""
        try:
            msgspec.json.decode("".join(self._arguments[-1]))
        except msgspec.DecodeError:
            return False
        return True

    def read(self, chunk: Chunk) -> list[Delta]:
        """What a chunk adds to the answer."""
        if self._is_plain:
            self._text.append(chunk.text)
            return [Delta(content=chunk.text)] if chunk.text else []
        thought_before = self._thinks()
        parts = list(self._parse(chunk.text, ended=chunk.finish is not None))
        self._undecided += len(chunk.ids)
        if thought_before or self._thinks():
            self.reasoning_tokens += self._undecided
            self._undecided = 0
        deltas = [delta for part in parts if (delta := self._note(part)) is not None]
        if self._text or self.calls:
            self._undecided = 0
        return deltas

    def finish(self) -> None:
        """The answer has ended: complete the calls."""
        for call, arguments in zip(self.calls, self._arguments, strict=True):
            call.function.arguments = "".join(arguments)

    def _thinks(self) -> bool:
        return any(parser.thinking for parser in (self._thoughts_parser, self._calls_parser) if parser is not None)

    def _parse(self, text: str, *, ended: bool) -> Iterator[Part]:
        first = _feed(self._thoughts_parser, text, ended=ended)
        for part in first:
            if isinstance(part, Text):
                yield from _feed(self._calls_parser, part.text, ended=False)
            else:
                yield part
        if ended and self._calls_parser is not None:
            yield from self._calls_parser.end()

    def _note(self, part: Part) -> Delta | None:
        if isinstance(part, Text):
            self._text.append(part.text)
            return Delta(content=part.text)
        if isinstance(part, Thought):
            return self._note_thought(part.text)
        if isinstance(part, CallBegin):
            return self._note_call(part)
        return self._note_arguments(part)

    def _note_thought(self, text: str) -> Delta | None:
        if not self._shows_thoughts:
            return None
        self._thoughts.append(text)
        return Delta(reasoning=text, reasoning_content=text)

    def _note_call(self, begun: CallBegin) -> Delta | None:
        self._drops = self._first_only and bool(self.calls)
        if self._drops:
            return None
        id = begun.id or make_call_id(short=self._short_ids)
        self.calls.append(MadeToolCall(id=id, function=CalledFunction(name=begun.name, arguments="")))
        self._arguments.append([])
        function = FunctionDelta(name=begun.name, arguments="")
        return Delta(tool_calls=[ToolCallDelta(index=len(self.calls) - 1, id=id, type="function", function=function)])

    def _note_arguments(self, part: CallArguments) -> Delta | None:
        if self._drops:
            return None
        self._arguments[-1].append(part.text)
        function = FunctionDelta(arguments=part.text)
        return Delta(tool_calls=[ToolCallDelta(index=len(self.calls) - 1, function=function)])


def _feed(parser: AnswerParser | None, text: str, *, ended: bool) -> list[Part]:
    if parser is None:
        return [Text(text)] if text else []
    return [*parser.push(text), *(parser.end() if ended else ())]


def make_call_id(*, short: bool) -> str:
    """An id for a call that the model gave none."""
    if short:
        return "".join(secrets.choice(_LETTERS) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"
