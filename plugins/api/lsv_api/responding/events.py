"""Events of a streamed response. ``sequence_number`` counts them, whatever their type."""

from __future__ import annotations

import msgspec

from lsv_api.http.sse import event
from lsv_api.records.responses import ChatLogprob
from lsv_api.responding.records import OutputItem, ResponseObject, ResponseOutputText, ResponseReasoningText


class ResponseEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int


class OfResponse(ResponseEvent, kw_only=True):
    response: ResponseObject


class ResponseCreated(OfResponse, tag="response.created"):
    """The response exists."""


class ResponseQueued(OfResponse, tag="response.queued"):
    """A response in the background waits for its turn."""


class ResponseInProgress(OfResponse, tag="response.in_progress"):
    """The model begins."""


class ResponseCompleted(OfResponse, tag="response.completed"):
    """The model has ended."""


class ResponseIncomplete(OfResponse, tag="response.incomplete"):
    """A bound has ended the response."""


class ResponseFailed(OfResponse, tag="response.failed"):
    """An error has ended the response."""


class OfItem(ResponseEvent, kw_only=True):
    output_index: int
    item: OutputItem


class ResponseItemAdded(OfItem, tag="response.output_item.added"):
    """An item begins."""


class ResponseItemDone(OfItem, tag="response.output_item.done"):
    """An item is whole."""


class InItem(ResponseEvent, kw_only=True):
    item_id: str
    output_index: int


class InContent(InItem, kw_only=True):
    content_index: int = 0


class ResponsePartAdded(InContent, kw_only=True, tag="response.content_part.added"):
    part: ResponseOutputText | ResponseReasoningText


class ResponsePartDone(InContent, kw_only=True, tag="response.content_part.done"):
    part: ResponseOutputText | ResponseReasoningText


class ResponseTextDelta(InContent, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ChatLogprob] = []


class ResponseTextDone(InContent, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ChatLogprob] = []


class ResponseReasoningDelta(InContent, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ResponseReasoningDone(InContent, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ResponseArgumentsDelta(InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ResponseArgumentsDone(InItem, kw_only=True, tag="response.function_call_arguments.done"):
    arguments: str


class ResponseCustomInputDelta(InItem, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class ResponseCustomInputDone(InItem, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


class ResponseErrorEvent(ResponseEvent, kw_only=True, tag="error"):
    """A stream ends before its response does."""

    code: str | None
    message: str
    param: str | None = None


StreamEvent = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ResponseItemAdded
    | ResponseItemDone
    | ResponsePartAdded
    | ResponsePartDone
    | ResponseTextDelta
    | ResponseTextDone
    | ResponseReasoningDelta
    | ResponseReasoningDone
    | ResponseArgumentsDelta
    | ResponseArgumentsDone
    | ResponseCustomInputDelta
    | ResponseCustomInputDone
    | ResponseErrorEvent
)


def frame(record: ResponseEvent) -> bytes:
    """The event as it is sent, with its type as the name of the event."""
    return name_of(type(record)) + event(record)


def name_of(kind: type[ResponseEvent]) -> bytes:
    return f"event: {kind.__struct_config__.tag}\n".encode()
