"""Asking for a response, if need be without the oldest items of its conversation."""

from __future__ import annotations

from collections.abc import Sequence

from lsv_api.http.context import Exchange, Served
from lsv_api.openai.asking import Asked, ask_chat
from lsv_api.records.requests import Message
from lsv_api.responding.items import Conversation
from lsv_api.responding.naming import naming_own_fields
from lsv_api.responding.reading import write_chat
from lsv_api.responding.requests import ResponsesRequest
from lsv_base.errors import ContextTooLong

_KEPT = ("system", "developer")
"""Roles whose messages are not dropped."""


async def ask_response(
    body: ResponsesRequest, chat: Conversation, served: Served, exchange: Exchange, id: str
) -> Asked:
    """Admit a conversation. With the truncation ``auto``, the oldest messages that must go for it to fit are dropped.

    Raises ``BadRequest`` and its kinds, with the fields of the body as ``param``.
    """
    try:
        return await _ask(body, chat, served, exchange, id)
    except ContextTooLong:
        if body.truncation != "auto":
            raise
        groups = group_messages(chat.messages)
        if len(groups) < 2:
            raise
    low, high = 1, len(groups) - 1
    found = await _ask(body, _drop(chat, groups[:high]), served, exchange, id)
    while low < high:
        middle = (low + high) // 2
        try:
            found = await _ask(body, _drop(chat, groups[:middle]), served, exchange, id)
        except ContextTooLong:
            low = middle + 1
        else:
            high = middle
    return found


async def _ask(body: ResponsesRequest, chat: Conversation, served: Served, exchange: Exchange, id: str) -> Asked:
    origins = {f"messages[{index}]": origin for index, origin in enumerate(chat.origins)}
    with naming_own_fields(origins):
        return await ask_chat(write_chat(body, chat), served, exchange, id)


def group_messages(messages: Sequence[Message]) -> list[list[int]]:
    """The places of messages that can be dropped, oldest first; calls and their results go together."""
    groups: list[list[int]] = []
    for index, message in enumerate(messages):
        if message.role in _KEPT:
            continue
        if message.role == "tool" and groups:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _drop(chat: Conversation, groups: Sequence[Sequence[int]]) -> Conversation:
    gone = {index for group in groups for index in group}
    kept = [index for index in range(len(chat.messages)) if index not in gone]
    return Conversation([chat.messages[index] for index in kept], [chat.origins[index] for index in kept])
