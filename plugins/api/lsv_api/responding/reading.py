"""From the body of POST /v1/responses to the chat that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.http.failures import Unsupported
from lsv_api.records.requests import ChatRequest, JsonSchemaFormat, ResponseFormat, SampledRequest
from lsv_api.responding.items import Conversation
from lsv_api.responding.requests import ResponsesFormat, ResponsesRequest
from lsv_api.responding.tools import check_choice, read_tools
from lsv_base.errors import BadRequest

_INSTEAD: Mapping[str, str] = {
    "conversation": "send the items in input, or previous_response_id",
    "prompt": "send the text in instructions and input",
    "context_management": 'set truncation to "auto"',
    "moderation": "leave it out",
    "background_options": "leave it out",
}
"""Fields that this server can't honour, and what to do."""
_EMPTY: tuple[Any, ...] = (None, [], {}, "")

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
_INCLUDABLE = (
    LOGPROBS,
    ENCRYPTED,
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""What ``include`` may name; parts of calls of built-in tools are never there to be included."""
_MOST_LOGPROBS = 20
_METADATA = (16, 64, 512)
"""Pairs, and characters of keys and values."""


def check_body(body: ResponsesRequest) -> None:
    """Raises ``BadRequest`` for fields that are wrong by themselves, and for those that can't be honoured."""
    for name, instead in _INSTEAD.items():
        if getattr(body, name) not in _EMPTY:
            raise Unsupported(f"{name} is not available on this server; {instead}", param=name)
    if body.input in _EMPTY and not body.previous_response_id:
        raise BadRequest("input is required: a text or a list of items", param="input")
    check_choice(body.truncation, ("auto", "disabled"), "truncation")
    _check_low("max_output_tokens", body.max_output_tokens)
    _check_low("max_tool_calls", body.max_tool_calls)
    for index, name in enumerate(body.include or ()):
        check_choice(name, _INCLUDABLE, f"include[{index}]")
    if not 0 <= (body.top_logprobs or 0) <= _MOST_LOGPROBS:
        raise BadRequest(f"top_logprobs must be between 0 and {_MOST_LOGPROBS}", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream to be true", param="stream_options")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        _refuse("stream_options.include_obfuscation", "events are not padded")
    if body.background and body.store is False:
        raise BadRequest("background needs store: its answer is fetched later", param="store")
    _check_thinking(body)
    _check_metadata(body.metadata or {})


def _check_thinking(body: ResponsesRequest) -> None:
    reasoning = body.reasoning
    for name in ("summary", "generate_summary"):
        asked = getattr(reasoning, name, None)
        if asked not in (None, "auto", "none"):
            _refuse(
                f"reasoning.{name} {asked[:32]!r}",
                'thoughts are shown as they are; use "auto"',
                name="reasoning.summary",
            )
    verbosity = None if body.text is None else body.text.verbosity
    if verbosity not in (None, "medium"):
        _refuse("text.verbosity", "ask for a short or a long answer in instructions")


def _refuse(what: str, instead: str, name: str | None = None) -> None:
    raise Unsupported(f"{what} is not available on this server; {instead}", param=name or what)


def _check_low(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise BadRequest(f"{name} must be at least 1, got {value}", param=name)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    pairs, longest_key, longest_value = _METADATA
    if len(metadata) > pairs:
        raise BadRequest(f"metadata takes at most {pairs} pairs, got {len(metadata)}", param="metadata")
    for key, value in metadata.items():
        if len(key) > longest_key or len(value) > longest_value:
            raise BadRequest(
                f"metadata: keys have at most {longest_key} characters and values {longest_value}", param="metadata"
            )


def shows_logprobs(body: ResponsesRequest) -> bool:
    return bool(body.top_logprobs) or LOGPROBS in (body.include or ())


def write_chat(body: ResponsesRequest, chat: Conversation) -> ChatRequest:
    """The chat completion that asks for the same. Raises ``BadRequest`` for tools and choices that can't be kept."""
    tools = read_tools(body.tools or (), body.tool_choice)
    same = {name: getattr(body, name) for name in SampledRequest.__struct_fields__}
    return ChatRequest(
        **same,
        messages=chat.messages,
        max_tokens=body.max_output_tokens,
        tools=tools.functions or None,
        tool_choice=tools.choice,
        parallel_tool_calls=False if body.max_tool_calls == 1 else body.parallel_tool_calls,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        response_format=_read_format(None if body.text is None else body.text.format),
        logprobs=shows_logprobs(body) or None,
        top_logprobs=body.top_logprobs or None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _read_format(given: ResponsesFormat | None) -> ResponseFormat | None:
    """The form of an answer, in chat completions' words."""
    if given is None or given.type == "text":
        return None
    check_choice(given.type, ("text", "json_object", "json_schema"), "text.format.type")
    if given.type == "json_object":
        return ResponseFormat(type="json_object")
    if given.schema is None:
        raise BadRequest("text.format.schema is required with type json_schema", param="text.format.schema")
    schema = JsonSchemaFormat(schema=given.schema, name=given.name, description=given.description, strict=given.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)
