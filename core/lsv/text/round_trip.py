"""Checks that parsers read back the calls and thoughts that a chat template writes.

A template shows how its model writes calls, because earlier calls of a conversation are in the prompt. The check
renders a history with calls, cuts out what the model would have written, and has the parsers read it, whole and in
pieces.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lsv.text.answer_parser import AnswerForm, AnswerParser, CallArguments, CallBegin, KnowsThoughts, Text, Thought
from lsv_base.errors import BadRequest

MakeParser = Callable[[AnswerForm], AnswerParser]
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""(messages, tools, add_generation_prompt) -> the prompt. Raises ``BadRequest``."""
Call = tuple[str, dict[str, Any]]

_SCHEMAS: dict[str, dict[str, Any]] = {
    "get_forecast": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "A city"},
            "days": {"type": "integer", "description": "How many days"},
        },
        "required": ["city"],
    },
    "get_time": {"type": "object", "properties": {}},
}
_QUESTION = {"role": "user", "content": "How will the weather be?"}
_THOUGHT = "The forecast says it."
_FIRST: Call = ("get_forecast", {"city": 'Sankt "Veit"', "days": 3})


class Case(NamedTuple):
    """The parts of an earlier answer in a conversation."""

    calls: tuple[Call, ...] = ()
    text: str = ""
    thought: str = ""


_CASES: Mapping[str, Case] = {
    "one call": Case((_FIRST,)),
    "two calls": Case((_FIRST, ("get_forecast", {"city": "Bern\nOst"}))),
    "a call without arguments": Case((("get_time", {}),)),
    "a call after a text": Case((_FIRST,), text="I look it up."),
    "a call after a thought": Case((_FIRST,), thought=_THOUGHT),
}
Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of functions' arguments, by name."""
Write = Callable[[Mapping[str, Case], Schemas], Sequence["Written"]]
"""Renders answers with a model's chat template, as :func:`write_answers` does."""
_BROKEN_MARK = re.compile(r"[<\[][^<>\[\]]*\Z")
_PIECES = (0, 1, 7)
"""How many characters the parsers get at once; 0 for all."""


class Written(NamedTuple):
    """An answer as the model would write it, according to its template."""

    name: str
    """The name of the case."""
    case: Case
    prompt: str
    answer: str
    cut: bool
    """Whether the prompt has text that the history lacks: some templates open thoughts and later leave them out."""


class RoundTrip(msgspec.Struct, frozen=True):
    """The result of reading answers back."""

    held: Sequence[str] = ()
    """Names of cases that were read as written."""
    failed: Sequence[str] = ()

    @property
    def proves(self) -> bool:
        """Whether the template writes calls and all of them were read back."""
        return bool(self.held) and not self.failed

    def __str__(self) -> str:
        if not self.held and not self.failed:
            return "the chat template shows no calls, so this could not be checked"
        if self.failed:
            return f"it can't read back what the template writes for {', '.join(self.failed)}"
        return f"it reads back what the template writes: {', '.join(self.held)}"


def write_calls(write: Write) -> Sequence[Written]:
    """The answers with calls that a template shows: one call, two, one after a text …"""
    return write(_CASES, _SCHEMAS)


def write_answers(render: Render, cases: Mapping[str, Case], schemas: Schemas) -> list[Written]:
    """The answers that a template shows, without cases that it refuses or does not write in full."""
    tools = [
        {"type": "function", "function": {"name": name, "description": "Looks it up", "parameters": schema}}
        for name, schema in schemas.items()
    ]
    try:
        before = render([_QUESTION], tools, False)
        prompt = render([_QUESTION], tools, True)
    except BadRequest:
        return []
    found = (_write(render, tools, before, prompt, name, case) for name, case in cases.items())
    return [written for written in found if written is not None]


def read_back(written: Sequence[Written], make_tools: MakeParser, make_thoughts: MakeParser | None) -> RoundTrip:
    """Check which answers the two parsers read as they were written."""
    held, failed = list[str](), list[str]()
    for one in written:
        reads = all(_read(one, make_tools, make_thoughts, size) == list(one.case.calls) for size in _PIECES)
        (held if reads else failed).append(one.name)
    return RoundTrip(held, failed)


def force_calls(written: Sequence[Written], open: str, make_thoughts: Any) -> list[Written]:
    """The answers as a grammar of forced calls begins them: with ``open``, and right after the thoughts."""
    found: list[Written] = []
    for one in written:
        _, begin, rest = one.answer.partition(open) if open else ("", "", one.answer)
        if one.case.text or one.case.thought or not (begin or not open):
            continue
        answer = f"{begin}{rest}"
        found.append(one._replace(answer=answer, cut=False))
        thinking = make_thoughts.thoughts_after(one.prompt) if isinstance(make_thoughts, KnowsThoughts) else None
        if thinking is not None:
            opened = "" if one.prompt.rstrip().endswith(thinking.begins) else thinking.begins[0]
            end = thinking.close or thinking.ends[0]
            found.append(one._replace(answer=f"{opened}{_THOUGHT}{end}{answer}", cut=False))
    return found


def _write(
    render: Render, tools: Sequence[Mapping[str, Any]], before: str, prompt: str, name: str, case: Case
) -> Written | None:
    made = [
        {"id": call_id(number), "type": "function", "function": {"name": called, "arguments": json.dumps(given)}}
        for number, (called, given) in enumerate(case.calls, 1)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": case.text}
    if made:
        message["tool_calls"] = made
    if case.thought:
        message["reasoning_content"] = case.thought
    try:
        shown = render([_QUESTION, message], tools, False)
    except BadRequest:
        return None
    if not shown.startswith(before) or (case.thought and case.thought not in shown):
        return None
    begin = _answer_begins(before, prompt, shown)
    answer, names = shown[begin:], Counter(called for called, _ in case.calls)
    if any(answer.count(called) < count for called, count in names.items()):
        return None
    return Written(name, case, prompt, answer, cut=begin < len(prompt))


def call_id(number: int) -> str:
    """The id of a case's call number ``number``, from 1: nine letters and digits, which Mistral requires."""
    return f"call{number:05d}"


def _answer_begins(before: str, prompt: str, shown: str) -> int:
    """Where the answer begins: after the common beginning of prompt and history, which ends at a whole mark."""
    size = 0
    for one, other in zip(prompt[len(before) :], shown[len(before) :], strict=False):
        if one != other:
            break
        size += 1
    common = shown[: len(before) + size]
    if len(common) == len(prompt):
        return len(common)
    broken = _BROKEN_MARK.search(common, len(before))
    return broken.start() if broken else len(common)


def _read(written: Written, make_tools: MakeParser, make_thoughts: MakeParser | None, size: int) -> list[Call] | None:
    """The calls that the parsers find, thoughts first as in a server; None if arguments are not JSON."""
    form = AnswerForm(tools=_SCHEMAS, prompt_end=written.prompt)
    answer = written.answer
    if make_thoughts is not None:
        if written.cut and _THOUGHT not in answer:
            answer = _think_first(make_thoughts, written.prompt, answer)
        answer = "".join(part.text for part in _parts(make_thoughts(form), answer, size) if isinstance(part, Text))
    calls: list[tuple[str, list[str]]] = []
    for part in _parts(make_tools(form), answer, size):
        if isinstance(part, CallBegin):
            calls.append((part.name, []))
        elif isinstance(part, CallArguments):
            calls[-1][1].append(part.text)
    try:
        return [(name, json.loads("".join(pieces))) for name, pieces in calls]
    except ValueError:
        return None


def _think_first(make_thoughts: Any, prompt: str, answer: str) -> str:
    """The answer, preceded by a thought if the prompt opened one that the answer does not end."""
    thinking = make_thoughts.thoughts_after(prompt) if isinstance(make_thoughts, KnowsThoughts) else None
    if thinking is None or not thinking.open or any(end in answer for end in thinking.ends):
        return answer
    return f"{_THOUGHT}{thinking.close or thinking.ends[0]}{answer}"


def _parts(parser: AnswerParser, text: str, size: int) -> list[Text | Thought | CallBegin | CallArguments]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return [*(part for piece in pieces for part in parser.push(piece)), *parser.end()]
