"""Chat templates that requests bring, rendered in a side process: a template is a program, and may never end.

``python -m lsv_api.request_templates FD PARENT`` is that process; it needs neither torch nor a tokenizer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lsv.text.chat_template import ChatTemplates, ContentFormat, Message
from lsv_base.errors import BadRequest
from lsv_base.processes.confinement.terms import Mode, Terms
from lsv_base.processes.side.main import Loaded, run
from lsv_base.processes.side.pool import SidePool
from lsv_base.processes.side.process import Broken, Kind
from lsv_base.processes.side.turns import NOBODY, Owner

_MODULE = "lsv_api.request_templates"
_PROCESSES = 2
_FLAG_CHARACTERS = 256
_FLAG_NUMBER = 1 << 16
"""Larger numbers than this are not flags, because templates may repeat texts or loop by a number."""
_OPTIONS = {"time": " (--api-template-timeout)", "memory": " (--api-template-memory-mb)", "crash": ""}


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first command: there is nothing to load."""


class Render(msgspec.Struct, frozen=True, tag=True):
    """Render a conversation; ``given`` is JSON of the arguments of ``ChatTemplates.render``."""

    special_tokens: Mapping[str, str]
    given: bytes


class Rendered(msgspec.Struct, frozen=True, tag=True):
    """The conversation as text."""

    text: str


class RequestTemplates:
    """Renders what strangers bring, within ``seconds`` and ``memory`` bytes. One event loop uses it."""

    def __init__(self, *, seconds: float, memory: int, confinement: Mode = "auto") -> None:
        kind = Kind("renders chat templates", _MODULE, Rendered, Terms(memory, seconds, confinement))
        self._pool: SidePool[Begin | Render, Rendered] = SidePool(kind, Begin(), seconds=seconds, size=_PROCESSES)

    async def render(
        self,
        template: str,
        messages: Sequence[Message],
        *,
        special_tokens: Mapping[str, str],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
        content_format: ContentFormat = "auto",
        continue_final_message: bool = False,
        owner: Owner = NOBODY,
    ) -> str:
        """As ``ChatTemplates.render``, which raises ``BadRequest``; also for a template that takes too much."""
        given = {
            "messages": messages, "template": template, "add_generation_prompt": add_generation_prompt,
            "tools": tools, "documents": documents, "kwargs": kwargs, "content_format": content_format,
            "continue_final_message": continue_final_message,
        }  # fmt: skip
        try:
            packed = msgspec.json.encode(given)
        except (ValueError, TypeError, OverflowError, RecursionError) as cause:
            raise BadRequest(f"the messages can't be handed to a chat template: {cause}", param="messages") from None
        try:
            return (await self._pool.ask(Render(special_tokens, packed), owner)).text
        except Broken as broken:
            raise BadRequest(
                f"the chat template was stopped: the process that rendered it {broken.how}{_OPTIONS[broken.reason]}",
                param="chat_template",
            ) from None

    def close(self) -> None:
        """End the processes; what is in progress fails."""
        self._pool.close()


def are_flags(kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments of a template only switch something: they can make none that is trusted run long."""
    return all(_is_flag(value) for value in kwargs.values())


def _is_flag(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _FLAG_CHARACTERS
    if isinstance(value, int | float):
        return abs(value) <= _FLAG_NUMBER
    return value is None


def _load(_: Begin) -> Loaded:
    return Loaded(_carry_out)


def _carry_out(command: Render) -> Iterator[Rendered]:
    given = msgspec.json.decode(command.given)
    text = ChatTemplates({}, command.special_tokens).render(**given)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest("the chat template wrote invalid Unicode", param="chat_template") from None
    yield Rendered(text)


if __name__ == "__main__":
    sys.exit(run("templates", Begin | Render, _load))
