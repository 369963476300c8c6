"""Compares how lsv and transformers render conversations with a chat template."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from lsv.text.chat_template import ChatTemplates
from lsv_base.errors import BadRequest
from published.prompts import CONVERSATION

TOOL = {"type": "function", "function": {"name": "now", "description": "The <time>", "parameters": {"type": "object"}}}
ARGUMENTS = {"city": 'Zürich "HB"'}
CALL: dict[str, Any] = {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": ARGUMENTS}}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "turns": (CONVERSATION, {}),
    "without a system": (CONVERSATION[1:], {}),
    "ended": (CONVERSATION[1:3], {"add_generation_prompt": False}),
    "tools": (CONVERSATION[:2], {"tools": [TOOL]}),
    "a call": (
        [CONVERSATION[1], {"role": "assistant", "content": "", "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "call00001", "name": "now", "content": "noon"}],
        {"tools": [TOOL]},
    ),
    "thoughts": ([*CONVERSATION[:2], {"role": "assistant", "reasoning_content": "Hm.", "content": "Cold."}], {}),
}  # fmt: skip
NAMED = {"bos_token": "<BOS>", "eos_token": "<EOS>", "pad_token": "<PAD>", "unk_token": "<UNK>"}


def find_other_renderings(name: str, source: str, original: str | None = None) -> Iterator[str]:
    """Names of the conversations that lsv renders with ``source`` other than transformers with ``original``."""
    for conversation, (messages, options) in CONVERSATIONS.items():
        given = {"add_generation_prompt": True, **options}
        found = render(source, messages, **given)
        if found not in (render_reference(original or source, form, **given) for form in _forms(messages)):
            yield f"{name}: {conversation}"


def _forms(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Two templates read calls only with arguments as JSON and no text beside them, which lsv finds out."""
    yield messages
    text = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}}
    yield [
        {**message, "content": None, "tool_calls": [text]} if "tool_calls" in message else message
        for message in messages
    ]


def render(source: str, messages: list[dict[str, Any]], **options: Any) -> str | None:
    try:
        return ChatTemplates({"default": source}, NAMED).render(copy.deepcopy(messages), **options)
    except BadRequest:
        return None


def render_reference(source: str, messages: list[dict[str, Any]], **options: Any) -> str | None:
    try:
        (text,), _ = render_jinja_template([copy.deepcopy(messages)], chat_template=source, **options, **NAMED)
    except Exception:  # templates raise what they like
        return None
    return str(text)
