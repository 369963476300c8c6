"""Checks the form of an offline chat's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lsv_base.errors import BadRequest


def list_conversations(messages: Any) -> Sequence[Any]:
    """One or several conversations, as a list of conversations. Raises ``BadRequest`` for anything else.

    The messages themselves are checked later, when they are read.
    """
    if not isinstance(messages, list | tuple):
        raise BadRequest(
            f'messages must be a list like [{{"role": "user", "content": "Hello"}}], or a list of such lists, '
            f"got {messages!r:.100}",
            param="messages",
        )
    return messages if messages and isinstance(messages[0], list | tuple) else [messages]


def check_chat_options(tools: object, template: object, template_kwargs: object, processor_kwargs: object) -> None:
    """Raises ``BadRequest`` for malformed options of ``LLM.chat``, which a template could silently ignore."""
    if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)):
        raise BadRequest(f"tools must be a list of mappings, got {tools!r:.100}", param="tools")
    if template is not None and not isinstance(template, str):
        raise BadRequest(f"chat_template must be a string, got {template!r:.100}", param="chat_template")
    for name, given in (("chat_template_kwargs", template_kwargs), ("mm_processor_kwargs", processor_kwargs)):
        if given is not None and not isinstance(given, Mapping):
            raise BadRequest(f"{name} must be a mapping, got {given!r:.100}", param=name)
