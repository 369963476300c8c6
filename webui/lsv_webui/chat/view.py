"""Conversations as the chat shows them: one entry for each message, so that their indices agree."""

from __future__ import annotations

from html import escape
from typing import Any

from lsv.errors import LsvError
from lsv_webui.chat.conversation import Chat, Message
from lsv_webui.chat.parts import upload

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""How all events of the page are set up: nothing spins, and no other program calls them."""

WAITING = '<span class="lsv-waiting"><i></i><i></i><i></i></span>'


def entries(chat: Chat) -> list[dict[str, Any]]:
    """The conversation as the chat's value."""
    return [_entry(message) for message in chat.messages]


def banner(text: str) -> str:
    return f'<div class="lsv-error" role="alert">{escape(text)}</div>'


def _entry(message: Message) -> dict[str, Any]:
    if message.role == "user":
        return {"role": "user", "content": [*map(_file, message.files), *([message.text] if message.text else ())]}
    shown = [message.text, banner(message.error) if message.error else ""]
    if message.text or message.note:
        # The line is there from the first word on, so that nothing moves when the figures come.
        shown.append(f'<span class="lsv-note">{escape(message.note) or "writing …"}</span>')
    return {"role": "assistant", "content": "\n\n".join(filter(None, shown)) or WAITING}


def _file(path: str) -> Any:
    try:
        return {"path": str(upload(path))}
    except LsvError as lost:
        return f"*{lost.message}*"
