"""From bodies of Ollama's API to requests of chat completions and completions."""

from __future__ import annotations

from collections.abc import Sequence

from lsv.media.content_parts import ContentPart, InlinePart
from lsv_api.http.context import Served
from lsv_api.http.failures import Unsupported
from lsv_api.ollama.options import answer_fields, thinking_fields
from lsv_api.ollama.records import OllamaCall, OllamaChatRequest, OllamaGenerateRequest, OllamaMessage
from lsv_api.records.requests import ChatRequest, CompletionRequest, FunctionCall, Message, ToolCall
from lsv_base.errors import BadRequest

_NOT_RAW = ("template", "system", "context", "images", "think")
_ELSEWHERE = {
    "suffix": "this server fills no gaps; write the gap into a prompt with raw true, as the model was trained for it",
    "template": "this server renders the model's own chat template; send a whole prompt with raw true",
    "width": "this server makes no images",
    "height": "this server makes no images",
    "steps": "this server makes no images",
    "_debug_render_only": "POST /tokenize shows how a conversation is rendered",
}
"""Fields of /api/generate that can't be honoured, and what to do instead."""


def read_chat(body: OllamaChatRequest, served: Served) -> ChatRequest:
    """The same conversation as a request of chat completions. Raises ``BadRequest`` for fields that can't be kept."""
    if body.tools and served.parsing.tools is None:
        raise Unsupported(
            f'"{served.name}" does not support tools: {served.parsing.why_no_tools or "no parser reads its calls"}; '
            "leave tools out, or start the server with --tool-call-parser",
            param="tools",
        )
    return ChatRequest(
        messages=read_messages(body.messages or []),
        tools=body.tools,
        logprobs=body.logprobs,
        top_logprobs=_top(body.top_logprobs),
        **thinking_fields(body.think, served),
        **answer_fields(body),
    )


def read_generate(body: OllamaGenerateRequest, served: Served) -> ChatRequest:
    """A prompt and its system prompt as a conversation. Raises ``BadRequest`` for fields that can't be kept."""
    _check_fields(body)
    if body.context and body.images:
        raise Unsupported("images can't follow a context; send them in messages to /api/chat", param="images")
    system = [OllamaMessage(role="system", content=body.system)] if body.system else []
    asked = OllamaMessage(role="user", content=body.prompt, images=body.images)
    return ChatRequest(
        messages=read_messages([*system, asked]),
        logprobs=body.logprobs,
        top_logprobs=_top(body.top_logprobs),
        **thinking_fields(body.think, served),
        **answer_fields(body),
    )


def read_raw(body: OllamaGenerateRequest) -> CompletionRequest:
    """A prompt that no template is put around. Raises ``BadRequest`` for fields that can't be kept."""
    _check_fields(body)
    for name in _NOT_RAW:
        if getattr(body, name):
            raise BadRequest(f"{name} can't be combined with raw, whose prompt is all there is", param=name)
    if body.top_logprobs and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    top = _top(body.top_logprobs) or 0
    return CompletionRequest(prompt=body.prompt or "", logprobs=top if body.logprobs else None, **answer_fields(body))


def read_messages(messages: Sequence[OllamaMessage]) -> list[Message]:
    """Messages as chat completions have them. Calls and results have no ids in Ollama's API as a rule: they get some,
    and a result answers the first call of its name that has none yet.
    """
    ids = _Ids()
    return [_read_message(message, ids) for message in messages]


def _read_message(message: OllamaMessage, ids: _Ids) -> Message:
    calls = [_read_call(call, ids) for call in message.tool_calls or ()]
    result = ids.answered(message) if message.role == "tool" else message.tool_call_id
    return Message(
        role=message.role,
        content=_content(message),
        reasoning_content=message.thinking or None,
        tool_calls=calls or None,
        tool_call_id=result,
        name=message.tool_name or None,
    )


def _content(message: OllamaMessage) -> str | list[ContentPart | str] | None:
    """Images come first, as Ollama puts them before the text."""
    if not message.images:
        return message.content or ("" if message.role != "assistant" or not message.tool_calls else None)
    images: list[ContentPart | str] = [
        InlinePart(type="image_url", payload=image.encode("utf-8", "surrogatepass")) for image in message.images
    ]
    return [*images, message.content] if message.content else images


def _read_call(call: OllamaCall, ids: _Ids) -> ToolCall:
    function = FunctionCall(name=call.function.name, arguments=call.function.arguments or {})
    return ToolCall(id=ids.called(call), function=function)


class _Ids:
    """Ids of calls, and of calls that have no result yet."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        self._calls = 0

    def called(self, call: OllamaCall) -> str:
        """The id of a call: its own, or nine letters and digits, which every template takes."""
        self._calls += 1
        id = call.id or f"call{self._calls:05}"
        self._open.append((id, call.function.name))
        return id

    def answered(self, message: OllamaMessage) -> str | None:
        """The id of the call whose result a message is; None where there was no such call."""
        for place, (id, name) in enumerate(self._open):
            if id == message.tool_call_id or (not message.tool_call_id and message.tool_name in (None, "", name)):
                del self._open[place]
                return id
        return message.tool_call_id


def _check_fields(body: OllamaGenerateRequest) -> None:
    for name, instead in _ELSEWHERE.items():
        if getattr(body, name):
            raise Unsupported(f"{name} is not available on this server: {instead}", param=name)


def _top(given: int | None) -> int | None:
    """``top_logprobs``, of which chat completions take -1 for a whole vocabulary, too."""
    if given is not None and given < 0:
        raise BadRequest(f"top_logprobs must be at least 0, got {given}", param="top_logprobs")
    return given
