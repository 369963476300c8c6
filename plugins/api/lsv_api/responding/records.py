"""What POST /v1/responses answers: items and the response that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lsv_api.records.responses import ChatLogprob
from lsv_api.responding.requests import ResponsesInputItem

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

ENDED: frozenset[ResponseStatus] = frozenset({"completed", "incomplete", "failed", "cancelled"})


class ResponseOutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ResponseReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class ResponseMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """Text that the model wrote."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[ResponseOutputText]


class ResponseReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought. ``encrypted_content`` has it once more where the request asks for that."""

    id: str
    status: ItemStatus
    summary: list[Any] = []
    content: list[ResponseReasoningText]
    encrypted_content: str | UnsetType = UNSET


class ResponseFunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the model asks for, of a function in ``namespace``. ``arguments`` is JSON, as the model wrote it."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class ResponseCustomCall(msgspec.Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes a text."""

    id: str
    call_id: str
    name: str
    input: str


OutputItem = ResponseMessage | ResponseReasoningItem | ResponseFunctionCall | ResponseCustomCall


class ResponseInputDetails(msgspec.Struct, kw_only=True):
    """``cached_tokens`` of the input came from the prefix cache; writing to it costs nothing here."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseOutputDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseFault(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class ResponseIncompleteDetails(msgspec.Struct, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, in the order of fields that OpenAI documents. What the request asked for is repeated."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    completed_at: int | None = None
    background: bool = False
    error: ResponseFault | None = None
    incomplete_details: ResponseIncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: Mapping[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = False
    temperature: float = 1.0
    text: Mapping[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[Mapping[str, Any]] = []
    top_logprobs: int = 0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: Mapping[str, str] = {}


class ResponseItems(msgspec.Struct, kw_only=True):
    """A page of the items that a response was made from."""

    object: Literal["list"] = "list"
    data: list[ResponsesInputItem]
    first_id: str
    last_id: str
    has_more: bool


class DeletedResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
