"""Conversations as the page keeps them: in the session while one is open, in the browser for the next visit."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

KEPT = 50
"""Conversations a browser keeps; the oldest go first."""

TITLE_LENGTH = 42


class Message(msgspec.Struct, kw_only=True):
    """One message. ``files`` are paths of uploads, ``note`` the figures of an answer, ``error`` why there is none."""

    role: Literal["user", "assistant"]
    text: str = ""
    files: tuple[str, ...] = ()
    note: str = ""
    error: str = ""


class Chat(msgspec.Struct, kw_only=True):
    """A conversation; user and assistant take turns."""

    id: str
    messages: list[Message] = []

    @property
    def title(self) -> str:
        """The beginning of what was said first."""
        said = next((message for message in self.messages if message.role == "user"), None)
        if said is None:
            return "New chat"
        text = " ".join(said.text.split()) or "Attachment"
        return text if len(text) <= TITLE_LENGTH else f"{text[: TITLE_LENGTH - 1].rstrip()}…"

    def ask(self, text: str, files: Sequence[str] = ()) -> None:
        self.messages.append(Message(role="user", text=text, files=tuple(files)))

    def back_to(self, index: int) -> Message | None:
        """Forget what follows the last question at or before ``index``; that question, or None without one."""
        while index >= 0 and (index >= len(self.messages) or self.messages[index].role != "user"):
            index -= 1
        if index < 0:
            return None
        del self.messages[index + 1 :]
        return self.messages[index]


def new_chat() -> Chat:
    return Chat(id=secrets.token_hex(6))


def read_chats(saved: object) -> list[Chat]:
    """What a browser kept, newest first; none if another version of the page wrote it."""
    try:
        return msgspec.convert(saved, list[Chat])
    except msgspec.ValidationError:
        return []


def keep(saved: object, chat: Chat) -> list[Any]:
    """What a browser keeps once ``chat`` has changed: it comes first."""
    others = [other for other in read_chats(saved) if other.id != chat.id]
    return _plain([chat, *others][:KEPT] if chat.messages else others)


def forget(saved: object, chat: Chat) -> list[Any]:
    return _plain([other for other in read_chats(saved) if other.id != chat.id])


def _plain(chats: list[Chat]) -> list[Any]:
    """Without answers that have not begun."""
    begun = [[one for one in chat.messages if one.text or one.files or one.error] for chat in chats]
    plain: list[Any] = msgspec.to_builtins([Chat(id=c.id, messages=m) for c, m in zip(chats, begun, strict=True)])
    return plain
