"""Bodies of POST /v1/responses, as OpenAI's Responses API and Open Responses name their fields."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from lsv.media.content_parts import InputAudio
from lsv_api.records.requests import Options, SampledRequest


class ResponsesPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of an item's content; ``type`` says which field holds it.

    ``file_id``, ``file_data`` and ``file_url`` are here to be refused: there are no files on this server.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    input_audio: InputAudio | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None


class ResponsesInputItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An item of the input: a message, a call of a function, its output, thoughts, or a reference to a stored item.

    Messages may leave out ``type``.
    """

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[ResponsesPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ResponsesPart] | None = None
    summary: list[ResponsesPart] | None = None
    encrypted_content: str | None = None


class ResponsesReasoning(Options, kw_only=True):
    """How much the model should think. Summaries are not written: the thoughts themselves are shown."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesFormat(Options, kw_only=True):
    """The form of the answer: ``text``, ``json_object``, or ``json_schema`` with its ``schema``."""

    type: str = "text"
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponsesText(Options, kw_only=True):
    format: ResponsesFormat | None = None
    verbosity: str | None = None


class ResponsesStreamOptions(Options, kw_only=True):
    include_obfuscation: bool | None = None


class ResponsesRequest(SampledRequest, kw_only=True):
    """POST /v1/responses."""

    brings_media: ClassVar[bool] = True
    payloads_anywhere: ClassVar[bool] = True

    input: str | list[ResponsesInputItem] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    reasoning: ResponsesReasoning | None = None
    text: ResponsesText | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    stream_options: ResponsesStreamOptions | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    background_options: Any = None
