"""Conversations: in the session while one is open, stored as records in the browser (``store.js``)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

TITLE_LENGTH = 42


class Message(msgspec.Struct, kw_only=True):
    """One message. ``files`` are paths of uploads, ``note`` the figures of an answer, ``error`` why there is none."""

    role: Literal["user", "assistant"]
    text: str = ""
    files: tuple[str, ...] = ()
    note: str = ""
    error: str = ""


class Chat(msgspec.Struct, kw_only=True):
    """A conversation; user and assistant take turns. It has no ``id`` before the first message.

    ``at`` is when it last changed, in seconds since 1970.
    """

    id: str = ""
    at: float = 0.0
    messages: list[Message] = []

    @property
    def title(self) -> str:
        """The beginning of the first message."""
        said = next((message for message in self.messages if message.role == "user"), None)
        if said is None:
            return "New chat"
        text = " ".join(said.text.split()) or "Attachment"
        return text if len(text) <= TITLE_LENGTH else f"{text[: TITLE_LENGTH - 1].rstrip()}…"

    def ask(self, text: str, files: Sequence[str] = ()) -> None:
        self.id = self.id or secrets.token_hex(6)
        self.messages.append(Message(role="user", text=text, files=tuple(files)))

    def back_to(self, index: int) -> Message | None:
        """Drop what follows the last question at or before ``index``; returns that question, or None."""
        while index >= 0 and (index >= len(self.messages) or self.messages[index].role != "user"):
            index -= 1
        if index < 0:
            return None
        del self.messages[index + 1 :]
        return self.messages[index]

    def interrupt(self) -> bool:
        """Mark an answer that was abandoned; returns whether there is one. A finished answer has its figures."""
        if not self.messages or self.messages[-1].role != "assistant":
            return False
        last = self.messages[-1]
        if last.note or last.error:
            return False
        last.note = "stopped"
        return True

    def record(self) -> str:
        """The conversation as the browser stores it, without an answer that has not begun."""
        self.at = time.time()
        begun = [message for message in self.messages if message.text or message.files or message.error]
        kept = Chat(id=self.id, at=self.at, messages=begun)
        return msgspec.json.encode({**msgspec.structs.asdict(kept), "title": self.title}).decode()

    def no_record(self) -> str:
        """The record of a deleted conversation."""
        return Chat(id=self.id, messages=[]).record()


def read_record(record: str) -> Chat | None:
    """A conversation stored by the browser; None if there is none, or if another version of the page wrote it.

    An unfinished answer in it is marked.
    """
    try:
        chat = msgspec.json.decode(record, type=Chat)
    except msgspec.DecodeError:
        return None
    chat.interrupt()
    return chat


def read_index(index: str) -> list[tuple[str, str]]:
    """Ids and titles of the conversations stored by the browser, newest first."""
    try:
        return msgspec.json.decode(index, type=list[tuple[str, str]])
    except msgspec.DecodeError:
        return []
