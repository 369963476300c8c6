"""Conversations as the chat component shows them: several entries for an answer, each with buttons of its own."""

from __future__ import annotations

import json
import re
from typing import Any

from lsv_base.errors import LsvError
from lsv_webui.chat.answer import MEASURABLE_SECONDS, duration
from lsv_webui.chat.conversation import Chat, Message, ToolCall
from lsv_webui.chat.maths import mark_formulas
from lsv_webui.chat.parts import upload
from lsv_webui.chat.typed import as_typed, escape_marks

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Options of all events of the page: no spinner, and not part of the page's public API."""

WAITING = '<span class="lsv-waiting"><i></i><i></i><i></i></span>'


def entries(chat: Chat) -> list[dict[str, Any]]:
    """The conversation as the chat component's value."""
    return [entry for message in chat.messages for entry in _entries(message)]


def message_at(chat: Chat, index: int | tuple[int, int] | list[int]) -> int:
    """The index of the message that an entry belongs to; after the last one for an entry that is gone."""
    shown = index if isinstance(index, int) else index[0]
    owners = [number for number, message in enumerate(chat.messages) for _ in _entries(message)]
    return owners[shown] if shown < len(owners) else len(chat.messages)


def banner(text: str) -> str:
    return f'<div class="lsv-error" role="alert">{linked(text)}</div>'


def linked(text: str) -> str:
    """A message as HTML. A click on a mention of the settings opens them (``settings.js``)."""
    return escape_marks(text).replace("under Settings", 'under <a href="#lsv-settings">Settings</a>')


def _entries(message: Message) -> list[dict[str, Any]]:
    """Thinking, answer and figures apart, so that the answer alone is what its button copies."""
    if message.role == "user":
        asked = [{"type": "text", "text": as_typed(message.text)}] if message.text else []
        return [{"role": "user", "content": [*map(_file, message.files), *asked]}]
    shown = [_thinking(message)] if message.thinking else []
    if answer := "\n\n".join(filter(str.strip, (mark_formulas(message.text), *map(_call, message.calls)))):
        # As a record, for Gradio takes the indentation off a string.
        shown.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    return [*shown, {"role": "assistant", "content": _state(message)}]


def _thinking(message: Message) -> dict[str, Any]:
    """Folded, so that nothing moves while it grows."""
    over = message.text or message.calls or message.finished
    measured = message.thinking_seconds >= MEASURABLE_SECONDS
    took = f"Thought for {duration(message.thinking_seconds)}" if measured else "Thoughts"
    folded = {"title": took if over else "Thinking …", "status": "done"}
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": mark_formulas(message.thinking)}],
        "metadata": folded,
    }


def _call(call: ToolCall) -> str:
    """The call as Markdown, with its arguments laid out once they are complete, and its result once it has run."""
    try:
        arguments = json.dumps(json.loads(call.arguments), indent=2, ensure_ascii=False)
    except ValueError:
        arguments = call.arguments
    called = f"Calls **{_code(call.name)}**\n\n{_fenced(arguments, 'json')}"
    return called if call.result is None else f"{called}\n\nResult\n\n{_fenced(call.result, 'text')}"


def _fenced(text: str, language: str) -> str:
    fence = _fence(text, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    fence = _fence(text, 1)
    return f"{fence}{text}{fence}"


def _fence(text: str, least: int) -> str:
    """A fence of more backticks than any run of backticks in the text."""
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))


def _state(message: Message) -> str:
    """What is below an answer: its figures, or that it is being written, and an error."""
    if not message.finished and not message.text and not message.calls:
        return WAITING
    # There from the first word on, so that nothing moves when the figures appear.
    figures = escape_marks(message.note) or ("" if message.error else "writing …")
    note = f'<span class="lsv-note">{figures}</span>' if figures else ""
    return "\n\n".join(filter(None, (note, banner(message.error) if message.error else "")))


def _file(path: str) -> Any:
    try:
        return {"path": str(upload(path))}
    except LsvError as lost:
        return f"*{escape_marks(lost.message)}*"
