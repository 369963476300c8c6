"""Finds the form of messages that a chat template expects, by rendering a short conversation in each form.

Templates differ in ways that no field declares: contents are texts or lists of parts, arguments of calls are objects or
JSON text, and a message without content has null, an empty text or no field. A form works if its words appear in the
prompt, but not as Python prints a list or a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from lsv.text.messages import read_arguments, write_arguments

Messages = Sequence[Mapping[str, Any]]
Render = Callable[[Messages, "Sequence[Mapping[str, Any]] | None"], "str | None"]
"""Renders a conversation and tools without a generation prompt; None if the template fails or refuses."""

ContentForm = Literal["text", "parts"]

_ABSENT: Any = ...
_EMPTY = (None, "", _ABSENT)
_FIRST, _SECOND = "Qalpha", "Qbeta"
_MOST = 64
"""Limit on cached answers, because clients may invent roles."""

_PARTS = [{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}]
_PRINTED_PARTS = (f"'text': '{_FIRST}'", f'"text": "{_FIRST}"', f'"text":"{_FIRST}"')
_ARGUMENTS = {"qkey": "qvalue"}
_PRINTED_OBJECT = ("'qkey':",)
_PRINTED_ARGUMENTS = (*_PRINTED_OBJECT, '\\"qkey\\"')
_USER = {"role": "user", "content": "Quser"}
_ID = "q23456789"
"""Nine letters and digits, which Mistral's templates require."""

_PROPERTIES = {"qname": {"type": "string", "description": "Qfield"}}
_TOOLS: Sequence[Mapping[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "qcall",
            "description": "Qtool",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": ["qname"]},
        },
    }
]
"""Needed because some templates show calls only if there are tools."""


class MessageForms:
    """The forms that one template reads, each found when a message first needs it."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._contents: dict[tuple[str, ContentForm], bool] = {}
        self._empty: dict[Any, Any] = {}

    def reads(self, role: str, form: ContentForm) -> bool:
        """Whether the template shows contents of this form in messages of this role."""
        known = self._contents.get((role, form))
        if known is None:
            if len(self._contents) >= _MOST:
                self._contents.clear()
            known = self._contents[role, form] = self._find(role, form)
        return known

    def content(self, role: str, given: str | Sequence[Any]) -> ContentForm:
        """The form for a content: its own, unless the template reads only the other one."""
        if isinstance(given, str):
            return "text" if self.reads(role, "text") or not self.reads(role, "parts") else "parts"
        return "parts" if self.reads(role, "parts") else "text"

    @cached_property
    def joins_arguments(self) -> bool:
        """Whether the template reads the arguments of calls as JSON text, and not as objects."""
        as_object = self._shows_calls(_ARGUMENTS, _PRINTED_ARGUMENTS)
        return not as_object and self._shows_calls(write_arguments(_ARGUMENTS), _PRINTED_OBJECT)

    def _shows_calls(self, arguments: Any, printed: Sequence[str]) -> bool:
        """Whether the template shows a call with such arguments, and not as in ``printed``."""
        return any(_shows_call(self._render(_call(empty, arguments), _TOOLS), printed) for empty in _EMPTY)

    def arguments(self, given: Any) -> Any:
        """The arguments of a call in the form that the template reads."""
        return write_arguments(given) if self.joins_arguments else read_arguments(given)

    def without_content(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with calls and no content, with the empty content that the template expects.

        That is the message's own, unless the template fails on it, drops the calls, or prints ``None``.
        """
        given = message.get("content", _ABSENT)
        if given not in self._empty:
            self._empty[given] = self._find_empty(given)
        bare = {name: value for name, value in message.items() if name != "content"}
        empty = self._empty[given]
        return bare if empty is _ABSENT else {**bare, "content": empty}

    def _find(self, role: str, form: ContentForm) -> bool:
        content: Any = _PARTS if form == "parts" else _FIRST
        tools = _TOOLS if role == "tool" else None
        conversations = self._conversations(role, content)
        return any(_shows_content(self._render(messages, tools), form) for messages in conversations)

    def _find_empty(self, given: Any) -> Any:
        arguments = self.arguments(_ARGUMENTS)
        rendered = {empty: self._render(_call(empty, arguments), _TOOLS) for empty in _EMPTY}
        texts = {empty: text for empty, text in rendered.items() if text is not None}
        shown = {empty: text for empty, text in texts.items() if _shows_call(text)}
        printed = {empty: text.count("None") for empty, text in (shown or texts).items()}
        fewest = min(printed.values(), default=0)
        return next((empty for empty in (given, *_EMPTY) if printed.get(empty) == fewest), given)

    def _conversations(self, role: str, content: Any) -> list[list[Mapping[str, Any]]]:
        """Conversations with one message of this role and content. Several, because templates refuse some orders."""
        message = {"role": role, "content": content}
        match role:
            case "user":
                return [[message]]
            case "system":
                return [[message, _USER]]
            case "tool":
                result = {**message, "tool_call_id": _ID, "name": "qcall"}
                arguments = self.arguments(_ARGUMENTS)
                return [[*_call(empty, arguments)[:2], result] for empty in _EMPTY]
            case _:
                return [[_USER, message, _USER], [_USER, message], [message, _USER]]


def _call(content: Any, arguments: Any) -> list[Mapping[str, Any]]:
    """A question, a call and its result."""
    function = {"name": "qcall", "arguments": arguments}
    call = {"role": "assistant", "tool_calls": [{"id": _ID, "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": _ID, "name": "qcall", "content": "Qresult"}
    return [_USER, call if content is _ABSENT else {**call, "content": content}, result]


def _shows_content(text: str | None, form: ContentForm) -> bool:
    if text is None or _FIRST not in text:
        return False
    return form == "text" or (_SECOND in text and not any(printed in text for printed in _PRINTED_PARTS))


def _shows_call(text: str | None, printed: Sequence[str] = _PRINTED_ARGUMENTS) -> bool:
    if text is None or not all(word in text for word in ("qcall", *_ARGUMENTS, *_ARGUMENTS.values())):
        return False
    return not any(one in text for one in printed)
