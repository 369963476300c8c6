"""Tools for models whose chat template does not support them: the server describes them in the prompt as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lsv.text.round_trip import Render
from lsv_base.errors import BadRequest

PARSER = "hermes"
"""The parser of calls in the described form."""
_CALL = ("<tool_call>\n", "\n</tool_call>")
_RESULT = ("<tool_response>\n", "\n</tool_response>")
_INTRODUCTION = "You can call these functions, which are given with the JSON schemas of their arguments:"
_INSTRUCTION = (
    "To call a function, answer with nothing but its name and arguments in this form, once for each call:\n"
    f'{_CALL[0]}{{"name": "the function", "arguments": {{"an argument": "its value"}}}}{_CALL[1]}'
)
_PROBE = "Lsv probes this template."
_QUESTION = {"role": "user", "content": "How will the weather be?"}
_TOOLS = [{"type": "function", "function": {"name": "probe", "description": "Looks it up", "parameters": {}}}]

Message = Mapping[str, Any]


class DescribedTools(msgspec.Struct, frozen=True):
    """Writes conversations with tools for a template without tools."""

    to_system: bool
    """Whether the template shows system messages; else the description goes into the first message of the user."""

    def write(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with the description, and with calls and results as text.

        Consecutive results become one message of the user, because many templates require alternating roles.
        """
        written: list[dict[str, Any]] = []
        after_result = False
        for message in messages:
            told = _as_text(message)
            if message["role"] == "tool" and after_result:
                written[-1]["content"] += f"\n{told['content']}"
            else:
                written.append(told)
            after_result = message["role"] == "tool"
        return self._introduce(written, _describe(tools)) if tools else written

    def _introduce(self, messages: list[dict[str, Any]], description: str) -> list[dict[str, Any]]:
        roles = ("system", "developer") if self.to_system else ("user",)
        at = next((at for at, message in enumerate(messages) if message["role"] in roles), None)
        if self.to_system and at != 0:
            return [{"role": "system", "content": description}, *messages]
        if at is None:
            return [{"role": "user", "content": description}, *messages]
        order = (messages[at]["content"], description) if self.to_system else (description, messages[at]["content"])
        changed = {**messages[at], "content": _join(*order)}
        return [*messages[:at], changed, *messages[at + 1 :]]


def find_described(render: Render) -> DescribedTools | None:
    """How to describe tools to a template that ignores them; None if it shows them or can't be rendered."""
    try:
        if render([_QUESTION], _TOOLS, True) != render([_QUESTION], [], True):
            return None
    except BadRequest:
        return None
    try:
        shown = render([{"role": "system", "content": _PROBE}, _QUESTION], [], True)
    except BadRequest:
        shown = ""
    return DescribedTools(to_system=_PROBE in shown)


def _describe(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return f"{_INTRODUCTION}\n<tools>\n{listed}\n</tools>\n{_INSTRUCTION}"


def _as_text(message: Message) -> dict[str, Any]:
    """A message whose calls and results have become text."""
    known = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
    if message["role"] == "tool":
        return {"role": "user", "content": _join(_RESULT[0], _text(message["content"]), _RESULT[1], between="")}
    if message.get("tool_calls"):
        known["content"] = _join(message["content"], *map(_call, message["tool_calls"]))
    return known


def _call(call: Mapping[str, Any]) -> str:
    function, given = call["function"], call["function"]["arguments"]
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return f'{_CALL[0]}{{"name": {json.dumps(function["name"])}, "arguments": {arguments or "{}"}}}{_CALL[1]}'


def _join(*contents: Any, between: str = "\n") -> Any:
    """Join contents: a text, or parts if one of them has parts."""
    given = [content for content in contents if content]
    if all(isinstance(content, str) for content in given):
        return between.join(given)
    parts: list[Any] = []
    for content in given:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _text(content: Any) -> str:
    """The text of a result, which may have several parts."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if "text" in part)
    return str(content or "")
