"""From the body of POST /v1/responses to the chat that it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lsv.errors import BadRequest
from lsv_api.http.failures import Unsupported
from lsv_api.records.requests import ChatRequest, JsonSchemaFormat, ResponseFormat, SampledRequest
from lsv_api.responding.items import INPUT, Conversation
from lsv_api.responding.requests import ResponsesFormat, ResponsesRequest

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
_TOOL_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "defer_loading": (None, False),
    "async": (None, False),
    "allowed_callers": (None, [], ["direct"]),
    "output_schema": _EMPTY,
}
"""Fields of functions that this server can't honour, with their neutral values."""
_CALLABLE = ("function", "custom")
"""Types of tools that an answer may call."""
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
    _check_choice(body.truncation, ("auto", "disabled"), "truncation")
    _check_low("max_output_tokens", body.max_output_tokens)
    _check_low("max_tool_calls", body.max_tool_calls)
    for index, name in enumerate(body.include or ()):
        _check_choice(name, _INCLUDABLE, f"include[{index}]")
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


def _check_choice(value: str | None, choices: Sequence[str], name: str) -> None:
    if value is not None and value not in choices:
        raise BadRequest(f"{name} must be one of {', '.join(choices)}, got {value[:64]!r}", param=name)


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
    tools = [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    allowed, choice = _read_choice(body.tool_choice)
    if allowed is not None:
        tools = _keep_allowed(tools, allowed)
    same = {name: getattr(body, name) for name in SampledRequest.__struct_fields__}
    return ChatRequest(
        **same,
        messages=chat.messages,
        max_tokens=body.max_output_tokens,
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=False if body.max_tool_calls == 1 else body.parallel_tool_calls,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        response_format=_read_format(None if body.text is None else body.text.format),
        logprobs=shows_logprobs(body) or None,
        top_logprobs=body.top_logprobs or None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _read_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "custom":
        return _read_custom(tool, where)
    if kind != "function":
        raise Unsupported(
            f"{where}.type {str(kind)[:64]!r} is not available on this server, which has no tools of its own; declare "
            "a function and call the tool yourself",
            param=f"{where}.type",
        )
    for name, neutral in _TOOL_NEUTRAL.items():
        if tool.get(name) not in neutral:
            raise Unsupported(f"{where}.{name} is not available on this server; leave it out", param=f"{where}.{name}")
    function = {
        name: value
        for name, value in tool.items()
        if name != "type" and name not in _TOOL_NEUTRAL and value is not None
    }
    return {"type": "function", "function": function}


def _read_custom(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The function that stands for a tool that takes a text."""
    form = tool.get("format")
    if form not in _EMPTY and not (isinstance(form, dict) and form.get("type") == "text"):
        raise Unsupported(
            f"{where}.format: inputs can't be held to a grammar on this server; leave it out", param=f"{where}.format"
        )
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    given = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
    return {"type": "function", "function": {**given, "parameters": schema}}


def custom_names(body: ResponsesRequest) -> frozenset[str]:
    """The tools that take a text instead of arguments."""
    return frozenset(str(tool.get("name")) for tool in body.tools or () if tool.get("type") == "custom")


def _keep_allowed(tools: list[dict[str, Any]], allowed: Sequence[str]) -> list[dict[str, Any]]:
    names = [tool["function"].get("name") for tool in tools]
    for name in allowed:
        if name not in names:
            raise BadRequest(f"tool_choice allows {name[:64]!r}, which is not among tools", param="tool_choice.tools")
    return [tool for tool, name in zip(tools, names, strict=True) if name in allowed]


def _read_choice(choice: str | Mapping[str, Any] | None) -> tuple[list[str] | None, str | dict[str, Any] | None]:
    """The names of the only functions that may be called, if they are limited, and the choice for a chat."""
    if choice is None or isinstance(choice, str):
        return None, choice
    kind, name = choice.get("type"), choice.get("name")
    if kind in _CALLABLE and isinstance(name, str):
        return None, {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        mode = choice.get("mode", "auto")
        _check_choice(str(mode), ("auto", "required"), "tool_choice.mode")
        return [_allowed_name(tool, index) for index, tool in enumerate(choice["tools"])], mode
    raise Unsupported(
        f"tool_choice of type {str(kind)[:64]!r} is not available on this server; use none, auto, required, "
        '{"type": "function", "name": …} or {"type": "allowed_tools", "mode": …, "tools": […]}',
        param="tool_choice",
    )


def _allowed_name(tool: Any, index: int) -> str:
    where = f"tool_choice.tools[{index}]"
    name = tool.get("name") if isinstance(tool, dict) and tool.get("type") in _CALLABLE else None
    if not isinstance(name, str):
        raise BadRequest(f'{where} must be {{"type": "function", "name": …}}', param=where)
    return name


def _read_format(given: ResponsesFormat | None) -> ResponseFormat | None:
    """The form of an answer, in chat completions' words."""
    if given is None or given.type == "text":
        return None
    _check_choice(given.type, ("text", "json_object", "json_schema"), "text.format.type")
    if given.type == "json_object":
        return ResponseFormat(type="json_object")
    if given.schema is None:
        raise BadRequest("text.format.schema is required with type json_schema", param="text.format.schema")
    schema = JsonSchemaFormat(schema=given.schema, name=given.name, description=given.description, strict=given.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)
