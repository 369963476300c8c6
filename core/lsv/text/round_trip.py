"""Whether parsers read back the calls and thoughts that a chat template writes.

A template shows how its model writes calls: earlier calls of a conversation are in the prompt. So a history with calls
is rendered, what the model would have written is cut out, and the parsers read it, whole and in pieces.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lsv.errors import BadRequest
from lsv.text.answer_parser import AnswerForm, AnswerParser, CallArguments, CallBegin, KnowsThoughts, Text, Thought

MakeParser = Callable[[AnswerForm], AnswerParser]
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""Messages, tools, and whether the header of an answer follows -> the prompt. Raises ``BadRequest``."""
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
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Looks it up", "parameters": schema}}
    for name, schema in _SCHEMAS.items()
]
_QUESTION = {"role": "user", "content": "How will the weather be?"}
_THOUGHT = "The forecast says it."
_FIRST: Call = ("get_forecast", {"city": 'Sankt "Veit"', "days": 3})
_CASES: Mapping[str, tuple[str, str, tuple[Call, ...]]] = {
    "one call": ("", "", (_FIRST,)),
    "two calls": ("", "", (_FIRST, ("get_forecast", {"city": "Bern\nOst"}))),
    "a call without arguments": ("", "", (("get_time", {}),)),
    "a call after a text": ("I look it up.", "", (_FIRST,)),
    "a call after a thought": ("", _THOUGHT, (_FIRST,)),
}
"""By what is tried: the text, the thought and the calls of an earlier answer."""
_BROKEN_MARK = re.compile(r"[<\[][^<>\[\]]*\Z")
_PIECES = (0, 1, 7)
"""How many characters come at once; 0 for all."""


class Written(NamedTuple):
    """What a model writes, as its template shows it."""

    case: str
    prompt: str
    answer: str
    calls: tuple[Call, ...]
    cut: bool
    """Whether the prompt goes on where the history does not: templates open thoughts, and leave them out later."""


class RoundTrip(msgspec.Struct, frozen=True):
    """What came of reading back."""

    held: Sequence[str] = ()
    """What was read as it was written."""
    failed: Sequence[str] = ()

    @property
    def proves(self) -> bool:
        """Whether the template writes calls, and all were read."""
        return bool(self.held) and not self.failed

    def __str__(self) -> str:
        if not self.held and not self.failed:
            return "the template shows no calls, so that they are read is not proved"
        if self.failed:
            return f"of what the template writes it does not read {', '.join(self.failed)}"
        return f"it reads what the template writes: {', '.join(self.held)}"


def write_calls(render: Render) -> list[Written]:
    """The answers with calls that a template shows. A case that it refuses, or does not write whole, is left out."""
    try:
        before = render([_QUESTION], _TOOLS, False)
        prompt = render([_QUESTION], _TOOLS, True)
    except BadRequest:
        return []
    found = (_write(render, before, prompt, case, *shown) for case, shown in _CASES.items())
    return [written for written in found if written is not None]


def read_back(written: Sequence[Written], make_tools: MakeParser, make_thoughts: MakeParser | None) -> RoundTrip:
    """Which answers two parsers read as they were written."""
    held, failed = list[str](), list[str]()
    for one in written:
        reads = all(_read(one, make_tools, make_thoughts, size) == list(one.calls) for size in _PIECES)
        (held if reads else failed).append(one.case)
    return RoundTrip(held, failed)


def _write(
    render: Render, before: str, prompt: str, case: str, text: str, thought: str, calls: tuple[Call, ...]
) -> Written | None:
    made = [
        {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for number, (name, given) in enumerate(calls, 1)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": made}
    if thought:
        message["reasoning_content"] = thought
    try:
        shown = render([_QUESTION, message], _TOOLS, False)
    except BadRequest:
        return None
    if not shown.startswith(before) or (thought and thought not in shown):
        return None
    begin = _answer_begins(before, prompt, shown)
    answer, names = shown[begin:], Counter(name for name, _ in calls)
    if any(answer.count(name) < count for name, count in names.items()):
        return None
    return Written(case, prompt, answer, calls, cut=begin < len(prompt))


def _answer_begins(before: str, prompt: str, shown: str) -> int:
    """Where the answer begins: after what the prompt and the history have in common, which ends at a whole mark."""
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
    """The calls that parsers find, thoughts first as in a server; None where arguments are not JSON."""
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
    """The answer after a thought, where the prompt has opened one that the answer does not end."""
    thinking = make_thoughts.thoughts_after(prompt) if isinstance(make_thoughts, KnowsThoughts) else None
    if thinking is None or not thinking.open or any(end in answer for end in thinking.ends):
        return answer
    return f"{_THOUGHT}{thinking.close or thinking.ends[0]}{answer}"


def _parts(parser: AnswerParser, text: str, size: int) -> list[Text | Thought | CallBegin | CallArguments]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return [*(part for piece in pieces for part in parser.push(piece)), *parser.end()]
