"""Writes a growing answer as a response, and as the events of its stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lsv.request.outputs import Chunk, PositionLogprobs
from lsv_api.http.sse import SLOTS, EventTemplate
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.openai.logprobs import LogprobWriter
from lsv_api.records.responses import ChatLogprob, Delta, ErrorBody, Usage
from lsv_api.responding import events as ev
from lsv_api.responding.building import Added, Began, ItemBuilder, Step
from lsv_api.responding.records import (
    OutputItem,
    ResponseFault,
    ResponseFunctionCall,
    ResponseIncompleteDetails,
    ResponseInputDetails,
    ResponseMessage,
    ResponseObject,
    ResponseOutputDetails,
    ResponseReasoningItem,
    ResponseUsage,
)

_FAULTS = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}
"""What a response calls errors, by their type; all others are the server's."""


class ResponseWriter:
    """Writes one answer. ``response`` is what it is so far; events are made only where ``streams`` says so.

    ``logprobs`` writes log probabilities, with ``response.top_logprobs`` candidates each; None leaves them out.
    """

    def __init__(
        self, response: ResponseObject, builder: ItemBuilder, logprobs: LogprobWriter | None = None, *, streams: bool
    ) -> None:
        self.response = response
        self.number = 0
        """Of the next event."""
        self._builder = builder
        self._logprobs = logprobs
        self._streams = streams
        self._scored: list[PositionLogprobs] = []
        """Log probabilities of the tokens since what was added last."""
        self._pending: list[ChatLogprob] = []
        self._delta = b""
        self._template: EventTemplate | None = None

    def begin(self, *, queued: bool = False) -> list[bytes]:
        """The events before the first of the answer, or before it waits in the queue."""
        self.response.status = "queued" if queued else "in_progress"
        self.response.output = self._builder.items
        if queued:
            return [*self._of_response(ev.ResponseCreated), *self._of_response(ev.ResponseQueued)]
        return [*self._of_response(ev.ResponseCreated), *self.start()]

    def start(self) -> list[bytes]:
        """The event that the model begins."""
        self.response.status = "in_progress"
        return self._of_response(ev.ResponseInProgress)

    def watch(self, chunk: Chunk) -> None:
        """See a chunk before what it adds is written."""
        if self._logprobs is not None:
            self._scored += chunk.logprobs or ()

    def add(self, deltas: Sequence[Delta]) -> list[bytes]:
        """The events of what a chunk has added. Most chunks only lengthen what is open: they take the short way."""
        if self._streams and self._logprobs is None and len(deltas) == 1:
            text = self._builder.lengthen(deltas[0])
            if text is not None:
                return [self._grow(text)]
        shown = self._take_logprobs(deltas)
        found: list[bytes] = []
        for delta in deltas:
            for step in self._builder.add(delta):
                if isinstance(step, Added) and shown and isinstance(self._builder.last, ResponseMessage):
                    self._builder.logprobs += shown
                    self._pending, shown = shown, []
                if self._streams:
                    found += self._events_of(step)
        return found

    def close(self, answer: GrowingAnswer) -> list[bytes]:
        """Complete the items and the response, and give the events of the items."""
        cut = answer.finish == "length"
        found = [
            event for step in self._builder.end("incomplete" if cut else "completed") for event in self._made(step)
        ]
        self.response.status = "incomplete" if cut else "completed"
        if cut:
            self.response.incomplete_details = ResponseIncompleteDetails(reason="max_output_tokens")
        else:
            self.response.completed_at = int(time.time())
        self.response.usage = _usage(answer.usage.usage())
        return found

    def conclude(self) -> list[bytes]:
        """The event of the whole response."""
        cut = self.response.status == "incomplete"
        return self._of_response(ev.ResponseIncomplete if cut else ev.ResponseCompleted)

    def fail(self, error: ErrorBody) -> list[bytes]:
        """The last events of a response that an error has ended."""
        found = self.begin() if not self.number else []
        found += self._cut_off()
        self.response.status = "failed"
        self.response.error = ResponseFault(code=_FAULTS.get(error.type, "server_error"), message=error.message)
        return [*found, *self._of_response(ev.ResponseFailed)]

    def cancel(self) -> list[bytes]:
        """The last events of a response that its client has cancelled."""
        found = self._cut_off()
        self.response.status = "cancelled"
        return [*found, self._event(ev.ResponseErrorEvent, code="cancelled", message="The response was cancelled")]

    def _cut_off(self) -> list[bytes]:
        return [event for step in self._builder.end("incomplete") for event in self._made(step)]

    def _made(self, step: Step) -> Iterator[bytes]:
        if self._streams:
            yield from self._events_of(step)

    def _take_logprobs(self, deltas: Sequence[Delta]) -> list[ChatLogprob]:
        """The log probabilities of the text of a chunk. Thoughts and calls show none."""
        scored, self._scored = self._scored, []
        if self._logprobs is None or not any(delta.content for delta in deltas):
            return []
        return self._logprobs.chat(scored, self.response.top_logprobs).content

    def _events_of(self, step: Step) -> Iterator[bytes]:
        if isinstance(step, Added):
            yield self._grow(step.text)
        elif isinstance(step, Began):
            yield from self._begin_item()
        else:
            yield from self._end_item()

    def _grow(self, text: str) -> bytes:
        """An event with a piece of text; of these there is one for each token."""
        assert self._template is not None
        pending, self._pending = self._pending, []
        return self._delta + self._template.fill(self._count(), text, pending)

    def _begin_item(self) -> Iterator[bytes]:
        item, place = self._builder.last, self._place()
        has_parts = isinstance(item, ResponseMessage | ResponseReasoningItem)
        shown = msgspec.structs.replace(item, content=[]) if has_parts else item
        yield self._event(ev.ResponseItemAdded, output_index=self._builder.index, item=shown)
        if isinstance(item, ResponseMessage | ResponseReasoningItem):
            yield self._event(ev.ResponsePartAdded, **place, part=item.content[0])
        record = self._delta_of(item)
        self._delta, self._template = ev.name_of(type(record)), EventTemplate(record)

    def _delta_of(self, item: OutputItem) -> ev.ResponseEvent:
        """The form of the events with pieces of an item: slots stand for what changes."""
        slots: tuple[Any, ...] = SLOTS
        number, delta, logprobs, _ = slots
        place = {"sequence_number": number, **self._place(), "delta": delta}
        if isinstance(item, ResponseMessage):
            return ev.ResponseTextDelta(**place, logprobs=[] if self._logprobs is None else logprobs)
        if isinstance(item, ResponseReasoningItem):
            return ev.ResponseReasoningDelta(**place)
        if isinstance(item, ResponseFunctionCall):
            return ev.ResponseArgumentsDelta(**place)
        return ev.ResponseCustomInputDelta(**place)

    def _end_item(self) -> Iterator[bytes]:
        item, place, text = self._builder.last, self._place(), self._builder.text
        if isinstance(item, ResponseMessage):
            yield self._event(ev.ResponseTextDone, **place, text=text, logprobs=item.content[0].logprobs)
        elif isinstance(item, ResponseReasoningItem):
            yield self._event(ev.ResponseReasoningDone, **place, text=text)
        elif isinstance(item, ResponseFunctionCall):
            yield self._event(ev.ResponseArgumentsDone, **place, arguments=text)
        else:
            yield self._event(ev.ResponseCustomInputDone, **place, input=text)
        if isinstance(item, ResponseMessage | ResponseReasoningItem):
            yield self._event(ev.ResponsePartDone, **place, part=item.content[0])
        yield self._event(ev.ResponseItemDone, output_index=self._builder.index, item=item)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._builder.last.id, "output_index": self._builder.index}

    def _of_response(self, kind: type[ev.OfResponse]) -> list[bytes]:
        return [self._event(kind, response=self.response)] if self._streams else []

    def _event(self, kind: type[ev.ResponseEvent], **fields: Any) -> bytes:
        return ev.frame(kind(sequence_number=self._count(), **fields))

    def _count(self) -> int:
        number, self.number = self.number, self.number + 1
        return number


def _usage(used: Usage) -> ResponseUsage:
    details = used.completion_tokens_details
    return ResponseUsage(
        input_tokens=used.prompt_tokens,
        input_tokens_details=ResponseInputDetails(
            cached_tokens=0 if used.prompt_tokens_details is None else used.prompt_tokens_details.cached_tokens
        ),
        output_tokens=used.completion_tokens,
        output_tokens_details=ResponseOutputDetails(reasoning_tokens=details.reasoning_tokens if details else 0),
        total_tokens=used.total_tokens,
    )
