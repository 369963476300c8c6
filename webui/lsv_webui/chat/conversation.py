"""Conversations: in the session while one is open, stored as records in the browser (``store.js``)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

TITLE_LENGTH = 42


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool that a model wants called; ``arguments`` are JSON as it wrote it. ``result`` is there once it has run."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    result: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One message. ``files`` are paths of uploads, ``note`` the figures of an answer, ``error`` why there is none.

    ``thinking`` is what a model wrote before its answer, in ``thinking_seconds``: shown, but not sent back. ``calls``
    are sent back once they have run.
    """

    role: Literal["user", "assistant"]
    text: str = ""
    files: tuple[str, ...] = ()
    thinking: str = ""
    thinking_seconds: float = 0.0
    calls: list[ToolCall] = []
    note: str = ""
    error: str = ""

    @property
    def begun(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.text or self.files or self.thinking or self.calls or self.error)

    @property
    def ran(self) -> bool:
        """Of an answer, whether it has calls and each has its result."""
        return bool(self.calls) and all(call.result is not None for call in self.calls)

    @property
    def finished(self) -> bool:
        """Of an answer, whether nothing more will come: it has its figures or an error."""
        return bool(self.note or self.error)


class Chat(msgspec.Struct, kw_only=True):
    """A conversation; user and assistant take turns, but for answers with calls, which another one follows. It has no
    ``id`` before the first message.

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
        """Mark answers that were abandoned; returns whether there are any."""
        abandoned = [message for message in self.messages if message.role == "assistant" and not message.finished]
        for message in abandoned:
            message.note = "stopped"
        return bool(abandoned)

    def record(self) -> str:
        """The conversation as the browser stores it, without an answer that has not begun."""
        self.at = time.time()
        begun = [message for message in self.messages if message.begun]
        kept = Chat(id=self.id, at=self.at, messages=begun)
        return msgspec.json.encode({**msgspec.structs.asdict(kept), "title": self.title}).decode()

    def no_record(self) -> str:
        """The record of a deleted conversation."""
        return Chat(id=self.id, messages=[]).record()


def read_record(record: str) -> Chat | None:
    """A conversation stored by the browser; None if there is none, or if another version of the page wrote it.

    Unfinished answers in it are marked.
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
