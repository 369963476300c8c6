"""Conversations as the chat component shows them: one entry per message, so that indices agree."""

from __future__ import annotations

from html import escape
from typing import Any

from lsv.errors import LsvError
from lsv_webui.chat.conversation import Chat, Message
from lsv_webui.chat.parts import upload

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Options of all events of the page: no spinner, and not part of the page's public API."""

WAITING = '<span class="lsv-waiting"><i></i><i></i><i></i></span>'


def entries(chat: Chat) -> list[dict[str, Any]]:
    """The conversation as the chat component's value."""
    return [_entry(message) for message in chat.messages]


def banner(text: str) -> str:
    return f'<div class="lsv-error" role="alert">{escape(text)}</div>'


def _entry(message: Message) -> dict[str, Any]:
    if message.role == "user":
        return {"role": "user", "content": [*map(_file, message.files), *([message.text] if message.text else ())]}
    shown = [message.text, banner(message.error) if message.error else ""]
    if message.text or message.note:
        # The line is there from the first word on, so that nothing moves when the figures appear.
        shown.append(f'<span class="lsv-note">{escape(message.note) or "writing …"}</span>')
    return {"role": "assistant", "content": "\n\n".join(filter(None, shown)) or WAITING}


def _file(path: str) -> Any:
    try:
        return {"path": str(upload(path))}
    except LsvError as lost:
        return f"*{lost.message}*"
