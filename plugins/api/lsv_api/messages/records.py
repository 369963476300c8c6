"""Bodies, answers and events of Messages, field for field as Anthropic names them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from lsv_api.records.requests import Options, SampledRequest


class MessagesSource(msgspec.Struct, kw_only=True):
    """Where an image or a document is: ``base64``, ``url``, ``text``, ``content`` or ``file``."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | list[MessagesBlock] | None = None


class MessagesInlineSource(MessagesSource, kw_only=True):
    """A source whose base64 was not parsed with the rest of the body."""

    payload: bytes


class MessagesCitations(msgspec.Struct, kw_only=True):
    enabled: bool | None = None


class MessagesBlock(msgspec.Struct, kw_only=True):
    """One block of a message's content; ``type`` says which fields hold it. Other fields (``cache_control``) are passed
    over.
    """

    type: str
    text: str | None = None
    source: MessagesSource | str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: str | list[MessagesBlock] | None = None
    is_error: bool | None = None
    title: str | None = None
    context: str | None = None
    citations: MessagesCitations | list[Any] | None = None


class MessagesMessage(msgspec.Struct, kw_only=True):
    """One message. ``system`` may stand between the others."""

    role: Literal["user", "assistant", "system"]
    content: str | list[MessagesBlock]


class MessagesTool(msgspec.Struct, kw_only=True):
    """A tool of the client's. Tools that run at Anthropic have another ``type``, and are refused."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    allowed_callers: list[str] | None = None


class MessagesToolChoice(Options, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesThinkingConfig(Options, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessagesFormat(Options, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class MessagesOutputConfig(Options, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessagesFormat | None = None


class MessagesEdit(msgspec.Struct, kw_only=True):
    type: str
    keep: Any = None


class MessagesContextManagement(msgspec.Struct, kw_only=True):
    edits: list[MessagesEdit] | None = None


class MessagesCountRequest(SampledRequest, kw_only=True):
    """POST /v1/messages/count_tokens. The last fields are here to be refused, or to be passed over."""

    brings_media: ClassVar[bool] = True

    messages: list[MessagesMessage]
    system: str | list[MessagesBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinkingConfig | None = None
    stop_sequences: list[str] | None = None
    output_config: MessagesOutputConfig | None = None
    output_format: MessagesFormat | None = None
    context_management: MessagesContextManagement | None = None
    container: Any = None
    mcp_servers: Any = None
    compaction: Any = None
    thread: Any = None
    cache_control: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    speed: Any = None
    fallbacks: Any = None
    betas: Any = None
    billing_policy: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def take_payloads(self, payloads: dict[str, bytes]) -> bool:
        """Give sources their base64, which was not parsed with the body. Returns whether all of it was given."""
        left = dict(payloads)
        for message in self.messages:
            for block in _blocks(message.content):
                source = block.source
                if isinstance(source, MessagesSource) and source.type == "base64" and source.data in left:
                    payload = left.pop(source.data)
                    block.source = MessagesInlineSource(type=source.type, media_type=source.media_type, payload=payload)
        return not left


class MessagesRequest(MessagesCountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int


def _blocks(content: str | Sequence[MessagesBlock] | None) -> Iterator[MessagesBlock]:
    """All blocks of a content, those within results and documents among them."""
    for block in () if content is None or isinstance(content, str) else content:
        yield block
        yield from _blocks(block.content)
        if isinstance(block.source, MessagesSource):
            yield from _blocks(block.source.content)


class MessagesCount(msgspec.Struct):
    input_tokens: int


class MessagesOutputDetails(msgspec.Struct):
    thinking_tokens: int


class MessagesUsage(msgspec.Struct, kw_only=True):
    """``input_tokens`` are those that were not in the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: MessagesOutputDetails | None = None
    service_tier: Literal["standard"] = "standard"


class MessagesDeltaUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: MessagesOutputDetails | None = None


class MessagesText(msgspec.Struct, kw_only=True, tag="text"):
    text: str
    citations: None = None


class MessagesThinking(msgspec.Struct, kw_only=True, tag="thinking"):
    thinking: str
    signature: str


class MessagesToolUse(msgspec.Struct, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


MessagesContent = MessagesText | MessagesThinking | MessagesToolUse

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessagesAnswer(msgspec.Struct, kw_only=True, tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[MessagesContent]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage


class MessagesStart(msgspec.Struct, kw_only=True, tag="message_start"):
    message: MessagesAnswer


class MessagesPing(msgspec.Struct, tag="ping"):
    pass


class MessagesBlockStart(msgspec.Struct, kw_only=True, tag="content_block_start"):
    index: int
    content_block: MessagesContent


class MessagesTextDelta(msgspec.Struct, tag="text_delta"):
    text: str


class MessagesThinkingDelta(msgspec.Struct, tag="thinking_delta"):
    thinking: str


class MessagesSignatureDelta(msgspec.Struct, tag="signature_delta"):
    signature: str


class MessagesInputDelta(msgspec.Struct, tag="input_json_delta"):
    partial_json: str


class MessagesBlockDelta(msgspec.Struct, kw_only=True, tag="content_block_delta"):
    index: int
    delta: MessagesTextDelta | MessagesThinkingDelta | MessagesSignatureDelta | MessagesInputDelta


class MessagesBlockStop(msgspec.Struct, kw_only=True, tag="content_block_stop"):
    index: int


class MessagesEnd(msgspec.Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None = None


class MessagesDelta(msgspec.Struct, kw_only=True, tag="message_delta"):
    delta: MessagesEnd
    usage: MessagesDeltaUsage


class MessagesStop(msgspec.Struct, tag="message_stop"):
    pass


class MessagesErrorBody(msgspec.Struct, kw_only=True):
    type: str
    message: str


class MessagesError(msgspec.Struct, kw_only=True, tag="error"):
    error: MessagesErrorBody


MessagesEvent = (
    MessagesStart
    | MessagesPing
    | MessagesBlockStart
    | MessagesBlockDelta
    | MessagesBlockStop
    | MessagesDelta
    | MessagesStop
    | MessagesError
)
