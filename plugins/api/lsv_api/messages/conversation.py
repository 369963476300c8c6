"""From a conversation as Anthropic writes it to messages of a chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from lsv.media.content_parts import ContentPart
from lsv_api.http.failures import log
from lsv_api.messages.blocks import Parts, plain, read_content, read_parts
from lsv_api.messages.records import MessagesBlock, MessagesCountRequest, MessagesMessage
from lsv_api.messages.signatures import Signer
from lsv_api.openai.asking import rewording
from lsv_api.records.requests import FunctionCall, Message, ToolCall
from lsv_base.errors import BadRequest

_NOTE = "x-anthropic-billing-header:"
"""Begins a text of Claude Code's that is for Anthropic's servers. It differs from session to session."""

_PLACE = re.compile(r"messages\[(?P<message>\d+)\](?:\.content(?:\[(?P<part>\d+)\])?)?")


class ChatMessages:
    """The messages of a chat, and where each was in the request."""

    def __init__(self, body: MessagesCountRequest, signer: Signer) -> None:
        self.messages: list[Message] = []
        self._places: list[str] = []
        self._parts: dict[tuple[int, int], str] = {}
        self._signer = signer
        self._unchecked = 0
        self._add_system(body.system)
        for index, message in enumerate(body.messages):
            self._add(message, f"messages[{index}]")
        if self.goes_on and self.messages[-1].tool_calls:
            where = self._places[-1]
            raise BadRequest(f"{where} calls tools: send a tool_result for each call after it", param=where)
        if self._unchecked:
            log.info("took %d thinking blocks that this server's key has not signed", self._unchecked)

    @property
    def goes_on(self) -> bool:
        """Whether the answer goes on from a text of the assistant's."""
        return bool(self.messages) and self.messages[-1].role == "assistant"

    @contextmanager
    def naming_places(self) -> Iterator[None]:
        """Errors about messages name the places where they were in the request."""
        with rewording(partial(_PLACE.sub, self._place)):
            yield

    def _place(self, found: re.Match[str]) -> str:
        number, part = int(found["message"]), found["part"]
        if number >= len(self._places):
            return found[0]
        if part is not None and (number, int(part)) in self._parts:
            return self._parts[number, int(part)]
        return self._places[number] + found[0][len(f"messages[{number}]") :]

    def _append(self, message: Message, place: str) -> None:
        self.messages.append(message)
        self._places.append(place)

    def _add_system(self, system: str | list[MessagesBlock] | None) -> None:
        blocks = system if isinstance(system, list) else ()
        kept = [block for block in blocks if not (block.text or "").startswith(_NOTE)]
        content = system if isinstance(system, str) else read_content(kept, "system")
        if content:
            self._append(Message(role="system", content=content), "system")

    def _add(self, message: MessagesMessage, where: str) -> None:
        if not message.content and message.role != "assistant":
            raise BadRequest(f"{where}.content must not be empty", param=f"{where}.content")
        if isinstance(message.content, str):
            self._append(Message(role=message.role, content=message.content), where)
        elif message.role == "assistant":
            self._add_answer(message.content, where)
        else:
            self._add_blocks(message.role, message.content, where)

    def _add_blocks(self, role: str, blocks: Sequence[MessagesBlock], where: str) -> None:
        """A message for each result of a tool, and for what stands between results."""
        parts: list[ContentPart] = []
        places: list[str] = []
        for index, block in enumerate(blocks):
            place = f"{where}.content[{index}]"
            if block.type == "tool_result" and role == "user":
                self._flush(role, parts, places, where)
                self._add_result(block, place)
                parts, places = [], []
                continue
            found = list(read_parts(block, place))
            parts += found
            places += [place] * len(found)
        self._flush(role, parts, places, where)

    def _flush(self, role: str, parts: Sequence[ContentPart], places: Sequence[str], where: str) -> None:
        if parts:
            self._parts |= {(len(self.messages), index): place for index, place in enumerate(places)}
            self._append(Message(role=role, content=plain(parts)), where)

    def _add_result(self, block: MessagesBlock, where: str) -> None:
        if not block.tool_use_id:
            raise BadRequest(f"{where}.tool_use_id is required in a tool_result", param=f"{where}.tool_use_id")
        content = read_content(block.content, f"{where}.content")
        if block.is_error:
            content = (
                f"Error: {content}" if isinstance(content, str) else [ContentPart(type="text", text="Error:"), *content]
            )
        self._append(Message(role="tool", tool_call_id=block.tool_use_id, content=content), where)

    def _add_answer(self, blocks: Sequence[MessagesBlock], where: str) -> None:
        parts: list[ContentPart] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for index, block in enumerate(blocks):
            place = f"{where}.content[{index}]"
            if block.type == "thinking":
                thoughts.append(self._check_thoughts(block, place))
            elif block.type == "tool_use":
                calls.append(_call(block, place))
            elif block.type != "redacted_thinking":  # which only its maker can read
                parts += read_parts(block, place)
        content = None if calls and not parts else plain(parts)
        told = "".join(thoughts) or None
        self._append(
            Message(role="assistant", content=content, reasoning_content=told, tool_calls=calls or None), where
        )

    def _check_thoughts(self, block: MessagesBlock, where: str) -> str:
        checked = self._signer.check(block.thinking or "", block.signature or "", where)
        self._unchecked += not checked.ours
        return checked.text


def _call(block: MessagesBlock, where: str) -> ToolCall:
    for name in ("id", "name"):
        if not getattr(block, name):
            raise BadRequest(f"{where}.{name} is required in a tool_use", param=f"{where}.{name}")
    return ToolCall(id=block.id, function=FunctionCall(name=block.name or "", arguments=block.input or {}))


def simpler_messages(messages: Sequence[Message]) -> list[Message] | None:
    """The same conversation for a template that takes system messages at the beginning only, or no media in results:
    these stand with the user's messages then. None where that is no other form.
    """
    simpler: list[Message] = []
    seen: Parts = []
    for message in messages:
        if message.role != "tool" and seen:
            simpler.append(Message(role="user", content=seen))
            seen = []
        if message.role == "system" and any(one.role != "system" for one in simpler):
            _tell_user(simpler, message)
        elif message.role == "tool" and isinstance(message.content, list):
            texts, media = _apart(message.content)
            simpler.append(Message(role="tool", tool_call_id=message.tool_call_id, content=texts))
            seen += media
        else:
            simpler.append(message)
    if seen:
        simpler.append(Message(role="user", content=seen))
    return None if _shape(simpler) == _shape(messages) else simpler


def _tell_user(messages: list[Message], told: Message) -> None:
    """Put a system message at the end of the user's last message, or in a message of its own."""
    last = messages[-1]
    if last.role != "user":
        messages.append(Message(role="user", content=told.content))
        return
    messages[-1] = Message(role="user", content=[*_as_parts(last.content), *_as_parts(told.content)])


def _as_parts(content: str | Parts | None) -> list[ContentPart]:
    parts = content if isinstance(content, list) else [content or ""]
    return [ContentPart(type="text", text=part) if isinstance(part, str) else part for part in parts]


def _apart(content: Parts) -> tuple[str | Parts, Parts]:
    """The texts of a content, and its media."""
    texts = [part for part in _as_parts(content) if part.type == "text"]
    return plain(texts), [part for part in _as_parts(content) if part.type != "text"]


def _shape(messages: Sequence[Message]) -> list[tuple[str, int]]:
    return [(one.role, len(one.content) if isinstance(one.content, list) else 0) for one in messages]
