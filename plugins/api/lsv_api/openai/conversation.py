"""From chat messages to a prompt: check them, convert them to what templates expect, render."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from lsv.media.content_parts import NO_MARKS, ContentPart, Reference, read_part, refusal, template_content
from lsv.request.media import Modality
from lsv.request.prompt import Prompt
from lsv.text.messages import Turn, order_results, template_role
from lsv_api.http.context import Exchange, Served
from lsv_api.http.failures import Unsupported
from lsv_api.openai.prompts import TextRule, encode_text
from lsv_api.openai.sampling import check_answers, salt_of
from lsv_api.options import ApiOptions
from lsv_api.records.pooling import InputRequest
from lsv_api.records.requests import ChatRequest, Message, TokenizeRequest, ToolCall
from lsv_api.request_templates import are_flags
from lsv_base.errors import BadRequest

Conversation = ChatRequest | TokenizeRequest | InputRequest
"""A body that has ``messages``."""
Shown = Sequence[Mapping[str, Any]] | None
"""Tools as the chat template gets them."""

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

SWITCHES = ("enable_thinking", "thinking")
"""Variables with which chat templates turn thinking on and off."""
_ELSEWHERE = {
    "function_call": "send the call in tool_calls",
    "audio": "send the transcript as content",
    "prefix": "set continue_final_message to true and add_generation_prompt to false",
}
"""Fields of messages on other servers, and what to do instead."""


async def encode_chat(body: Conversation, served: Served, exchange: Exchange, tools: Shown = None) -> Prompt:
    """Render and tokenise a conversation. Templates write special tokens themselves, so none are added. ``tools`` are
    those that the template shows.

    Media are fetched and prepared, and stand in the prompt where the template has put their placeholders.
    Raises ``BadRequest`` for messages the model can't take.
    """
    api, media = exchange.api, served.client.media
    fits = not isinstance(body, TokenizeRequest) and body.truncate_prompt_tokens is None
    if isinstance(body, ChatRequest):
        check_answers(body, 1, served, api.options.limits)
    shown, messages = await exchange.prepare(exchange.size, _read, body, served, api.options)
    text = await _render(body, messages, tools, served, exchange)
    text = text if media is None else media.spell(text)
    ids = await encode_text(text, served, exchange, TextRule("messages", bool(body.add_special_tokens), fits))
    if not ids:
        raise BadRequest("messages: the chat template made an empty prompt of them", param="messages")
    if media is None:
        if body.mm_processor_kwargs:
            raise BadRequest("mm_processor_kwargs: this model takes text only", param="mm_processor_kwargs")
        return Prompt(ids=tuple(ids), text=text)
    # also without media: a placeholder that a text spells out has nothing to stand for
    began = time.monotonic()
    salt = salt_of(exchange, getattr(body, "cache_salt", None))
    prepared = await media.prepare(shown, body.mm_processor_kwargs or {}, exchange.owner, salt)
    placed = media.place(ids, prepared)
    exchange.preparing = time.monotonic() - began if shown else 0.0
    return msgspec.structs.replace(placed, text=text)


def _read(body: Conversation, served: Served, options: ApiOptions) -> tuple[list[Reference], list[dict[str, Any]]]:
    """The media of a conversation, and its messages as templates know them."""
    given = body.messages or []
    if len(given) > options.limits.messages:
        raise BadRequest(
            f"messages takes at most {options.limits.messages} messages (--api-max-messages), got {len(given)}",
            param="messages",
        )
    messages = template_messages(given, NO_MARKS if served.client.media is None else served.client.media.marks)
    order = order_results([_turn(message) for message in given])
    shown = _references([given[place] for place in order], served)
    _check_chats(served)
    return shown, [messages[place] for place in order]


def _turn(message: Message) -> Turn:
    calls = [call.id or "" for call in message.tool_calls or ()]
    return Turn(calls, message.tool_call_id or "" if message.role == "tool" else None)


def template_messages(messages: Sequence[Message], marks: Mapping[Modality, str] = NO_MARKS) -> list[dict[str, Any]]:
    """Messages in the form for templates: content is a text or parts, and media have their ``marks``."""
    if not messages:
        raise BadRequest("messages must hold at least one message", param="messages")
    return [_template_message(message, f"messages[{index}]", marks) for index, message in enumerate(messages)]


def final_text(messages: Sequence[Message]) -> str:
    """The text of the last message."""
    parts = _parts(messages[-1].content, f"messages[{len(messages) - 1}].content")
    return "\n".join(part for part in parts if isinstance(part, str))


def _template_message(message: Message, where: str, marks: Mapping[Modality, str]) -> dict[str, Any]:
    if not _ROLE.fullmatch(message.role):
        raise BadRequest(f"{where}.role must be a word like user or assistant", param=f"{where}.role")
    for name, instead in _ELSEWHERE.items():
        if getattr(message, name):
            raise Unsupported(f"{where}.{name} is not available on this server; {instead}", param=f"{where}.{name}")
    role = template_role(message.role)
    if message.content is None and role not in ("assistant", "tool", "function"):
        raise BadRequest(f"{where}.content is required for role {role}", param=f"{where}.content")
    known: dict[str, Any] = {"role": role, "content": _template_content(message, where, marks)}
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        if (value := getattr(message, name)) is not None:
            known[name] = value
    if message.tool_calls:
        known["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return known


def _template_content(message: Message, where: str, marks: Mapping[Modality, str]) -> str | list[dict[str, str]] | None:
    """Keep null next to calls, because some templates recognise calls by it."""
    if isinstance(message.content, list):
        return template_content(_parts(message.content, f"{where}.content"), marks)
    return None if message.content is None and message.tool_calls else message.content or ""


def _parts(content: str | list[ContentPart | str] | None, where: str) -> list[str | Reference]:
    """The texts and media of a message."""
    if not isinstance(content, list):
        return [content or ""]
    return [read_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _references(messages: Sequence[Message], served: Served) -> list[Reference]:
    """The media of a conversation. Raises ``BadRequest`` for those that the model does not take."""
    found = [
        part
        for index, message in enumerate(messages)
        for part in _parts(message.content, f"messages[{index}].content")
        if isinstance(part, Reference)
    ]
    if found and served.client.media is None:
        raise refusal(found[0], (), served.client.config.wrapper)
    if served.client.media is not None:
        served.client.media.check(found)
    return found


def _check_chats(served: Served) -> None:
    """Raises ``BadRequest`` for a model that only transcribes."""
    media = served.client.media
    if media is not None and media.transcriber is not None and not served.client.tokenizer.has_chat_template:
        raise BadRequest(
            "messages: this model does not chat, it transcribes: send audio to /v1/audio/transcriptions",
            param="messages",
        )


def _template_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": call.type, "function": function}


async def _render(
    body: Conversation,
    messages: list[dict[str, Any]],
    tools: Shown,
    served: Served,
    exchange: Exchange,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The conversation as its template writes it; ``more`` variables override the request's."""
    options = exchange.api.options
    if body.chat_template is not None and not options.request_templates:
        raise BadRequest(
            "chat_template: requests may not bring templates; --api-request-templates allows them",
            param="chat_template",
        )
    continuing = bool(body.continue_final_message)
    if continuing and body.add_generation_prompt:
        raise BadRequest(
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )
    arguments: Mapping[str, Any] = {
        "add_generation_prompt": _begins_answer(body) and not continuing,
        "tools": tools or None,
        "documents": body.documents,
        "kwargs": {**template_variables(body, options), **more},
        "content_format": options.content_format,
        "continue_final_message": continuing,
    }
    described = None if body.chat_template else served.parsing.described
    if described is not None:
        messages, arguments = described.write(messages, tools or ()), {**arguments, "tools": None}
    tokenizer, template = served.client.tokenizer, body.chat_template or options.chat_template
    brought = body.chat_template is not None and not tokenizer.has_template(body.chat_template)
    if brought or not are_flags(arguments["kwargs"]):
        source, special = tokenizer.template_source(template, with_tools=bool(tools)), tokenizer.special_tokens
        return await exchange.api.templates.render(
            source, messages, special_tokens=special, owner=exchange.owner, **arguments
        )
    render = tokenizer.render_chat
    return await exchange.prepare(exchange.size, render, messages, template=template, **arguments)


def _begins_answer(body: Conversation) -> bool:
    """Whether the beginning of an answer ends the prompt: where one is to follow, or the request says so."""
    asked = body.add_generation_prompt
    return not isinstance(body, InputRequest) if asked is None else asked


def template_variables(body: Conversation, options: ApiOptions) -> dict[str, Any]:
    """The variables of the chat template: the operator's, then the request's."""
    return {**options.default_chat_template_kwargs, **_effort(body), **(body.chat_template_kwargs or {})}


def forbids_thinking(body: ChatRequest, options: ApiOptions) -> bool:
    """Whether a request turns thinking off by name, whether or not its template knows the name."""
    given = template_variables(body, options)
    return any(given.get(switch) is False for switch in SWITCHES)


async def leaves_thinking_off(
    body: ChatRequest, prompt: Prompt, served: Served, exchange: Exchange, tools: Shown
) -> bool:
    """Whether the template has a thinking switch and it is off: turning it on changes the prompt."""
    api, media = exchange.api, served.client.media
    _, messages = await exchange.prepare(exchange.size, _read, body, served, api.options)
    try:
        text = await _render(body, messages, tools, served, exchange, dict.fromkeys(SWITCHES, True))
    except BadRequest:
        return False  # the template does not accept the switch
    return prompt.text != (text if media is None else media.spell(text))


def _effort(body: Conversation) -> dict[str, str | bool]:
    """How much the model should think, for templates that read that, or only whether it should."""
    effort = body.reasoning_effort if isinstance(body, ChatRequest) else None
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
