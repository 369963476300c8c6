"""From an answer as it grows to Anthropic's blocks: as events, or whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Literal, NamedTuple

from lsv.text.messages import read_arguments
from lsv_api.http.sse import SLOTS, EventTemplate, event
from lsv_api.messages.records import (
    MessagesAnswer,
    MessagesBlockDelta,
    MessagesBlockStart,
    MessagesBlockStop,
    MessagesContent,
    MessagesDelta,
    MessagesDeltaUsage,
    MessagesEnd,
    MessagesInputDelta,
    MessagesOutputDetails,
    MessagesPing,
    MessagesRequest,
    MessagesSignatureDelta,
    MessagesStart,
    MessagesStop,
    MessagesText,
    MessagesTextDelta,
    MessagesThinking,
    MessagesThinkingDelta,
    MessagesToolUse,
    MessagesUsage,
    StopReason,
)
from lsv_api.messages.signatures import Signer
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.records.responses import Delta, ToolCallDelta

Kind = Literal["text", "thinking", "tool_use"]

_PING = event(MessagesPing(), "ping")


class Piece(NamedTuple):
    """What a delta adds to a block. A ``call`` begins a block of its own."""

    kind: Kind
    text: str
    call: ToolCallDelta | None = None


def _pieces(delta: Delta) -> Iterator[Piece]:
    for call in delta.tool_calls or ():
        arguments = call.function.arguments or ""
        yield Piece("tool_use", arguments, call if call.id else None)
    if delta.reasoning:
        yield Piece("thinking", delta.reasoning)
    if delta.content:
        yield Piece("text", delta.content)


class OpenBlock:
    """The block that an answer is writing."""

    def __init__(self, kind: Kind, call: ToolCallDelta | None) -> None:
        self.kind = kind
        self._call = call
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def begun(self) -> MessagesContent:
        """The block as it stands before its first piece."""
        if self.kind == "text":
            return MessagesText(text="")
        if self.kind == "thinking":
            return MessagesThinking(thinking="", signature="")
        return self._use({})

    def ended(self, signer: Signer, *, hidden: bool) -> MessagesContent:
        """The whole block."""
        if self.kind == "text":
            return MessagesText(text=self.text)
        if self.kind == "thinking":
            signature = signer.sign(self.text, hidden=hidden)
            return MessagesThinking(thinking="" if hidden else self.text, signature=signature)
        return self._use(read_arguments(self.text))

    def _use(self, arguments: dict[str, object]) -> MessagesToolUse:
        assert self._call is not None
        return MessagesToolUse(id=self._call.id or "", name=self._call.function.name or "", input=arguments)


class MessageWriter:
    """Writes one answer."""

    def __init__(self, body: MessagesRequest, growing: GrowingAnswer, signer: Signer, id: str, model: str) -> None:
        self._max_tokens = body.max_tokens
        self._hidden = body.thinking is not None and body.thinking.display == "omitted"
        self._growing = growing
        self._signer = signer
        self._id = id
        self._model = model
        self._index = 0
        self._block: OpenBlock | None = None
        self._growth: EventTemplate | None = None

    async def whole(self) -> MessagesAnswer:
        """Run to the end."""
        content: list[MessagesContent] = []
        async for deltas in self._growing.deltas():
            for piece in (piece for delta in deltas for piece in _pieces(delta)):
                ended = self._turn_to(piece)
                content += () if ended is None else (ended.ended(self._signer, hidden=self._hidden),)
                self._add(piece)
        if self._block is not None:
            content.append(self._block.ended(self._signer, hidden=self._hidden))
        end = self._end()
        return self._answer(content, end)

    async def events(self) -> AsyncGenerator[bytes, None]:
        begun = False
        async for deltas in self._growing.deltas():
            data = b"" if begun else self._opening()
            begun = True
            for delta in deltas:
                data += self._more_text(delta) or b"".join(map(self._write, _pieces(delta)))
            if data:
                yield data
        yield (b"" if begun else self._opening()) + self._close(self._block) + self._ending()

    def _more_text(self, delta: Delta) -> bytes:
        """The event of a delta that only goes on with the open text, as most do; empty for another one."""
        if self._growth is None or self._block is None or self._block.kind != "text":
            return b""
        if not delta.content or delta.reasoning or delta.tool_calls:
            return b""
        return self._growth.fill(delta.content)  # a text that was sent is not needed again

    def _turn_to(self, piece: Piece) -> OpenBlock | None:
        """Go on in the open block, or begin another one; the block that this has ended."""
        block = self._block
        if block is not None and block.kind == piece.kind and piece.call is None:
            return None
        self._block = OpenBlock(piece.kind, piece.call)
        self._growth = None
        return block

    def _add(self, piece: Piece) -> None:
        assert self._block is not None
        self._block.add(piece.text)

    def _write(self, piece: Piece) -> bytes:
        """The events of a piece."""
        before = self._block
        ended, data = self._turn_to(piece), b""
        assert self._block is not None
        if self._block is not before:
            data = self._close(ended)
            begun = MessagesBlockStart(index=self._index, content_block=self._block.begun())
            data += event(begun, "content_block_start")
        self._add(piece)
        if not piece.text or (piece.kind == "thinking" and self._hidden):
            return data
        if self._growth is None:
            self._growth = _growth(piece.kind, self._index)
        return data + self._growth.fill(piece.text)

    def _close(self, block: OpenBlock | None) -> bytes:
        """The events that end a block; thoughts get their signature."""
        if block is None:
            return b""
        data = b""
        ended = block.ended(self._signer, hidden=self._hidden) if block.kind == "thinking" else None
        if isinstance(ended, MessagesThinking):
            signed = MessagesBlockDelta(index=self._index, delta=MessagesSignatureDelta(ended.signature))
            data = event(signed, "content_block_delta")
        data += event(MessagesBlockStop(index=self._index), "content_block_stop")
        self._index += 1
        return data

    def _opening(self) -> bytes:
        return event(MessagesStart(message=self._answer([], None)), "message_start") + _PING

    def _ending(self) -> bytes:
        used = self._usage()
        usage = MessagesDeltaUsage(
            input_tokens=used.input_tokens,
            cache_read_input_tokens=used.cache_read_input_tokens,
            output_tokens=used.output_tokens,
            output_tokens_details=used.output_tokens_details,
        )
        return event(MessagesDelta(delta=self._end(), usage=usage), "message_delta") + event(
            MessagesStop(), "message_stop"
        )

    def _answer(self, content: list[MessagesContent], end: MessagesEnd | None) -> MessagesAnswer:
        return MessagesAnswer(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=None if end is None else end.stop_reason,
            stop_sequence=None if end is None else end.stop_sequence,
            usage=self._usage(),
        )

    def _end(self) -> MessagesEnd:
        growing = self._growing
        if growing.waits:
            return MessagesEnd(stop_reason="tool_use")
        if isinstance(growing.stop, str) and growing.finish == "stop":
            return MessagesEnd(stop_reason="stop_sequence", stop_sequence=growing.stop)
        if growing.finish == "length":
            return MessagesEnd(stop_reason=self._length())
        return MessagesEnd(stop_reason="end_turn")

    def _length(self) -> StopReason:
        """Which bound ended the answer: the one that was asked for, or the context."""
        full = self._growing.usage.usage().completion_tokens >= self._max_tokens
        return "max_tokens" if full else "model_context_window_exceeded"

    def _usage(self) -> MessagesUsage:
        used = self._growing.usage.usage()
        cached = used.prompt_tokens_details.cached_tokens if used.prompt_tokens_details else 0
        thoughts = used.completion_tokens_details
        return MessagesUsage(
            input_tokens=max(used.prompt_tokens - cached, 0),
            cache_read_input_tokens=min(cached, used.prompt_tokens),
            output_tokens=used.completion_tokens,
            output_tokens_details=MessagesOutputDetails(thoughts.reasoning_tokens) if thoughts else None,
        )


def _growth(kind: Kind, index: int) -> EventTemplate:
    """The events of a block's pieces, which differ in their texts alone."""
    delta: MessagesTextDelta | MessagesThinkingDelta | MessagesInputDelta
    if kind == "text":
        delta = MessagesTextDelta(SLOTS[0])
    elif kind == "thinking":
        delta = MessagesThinkingDelta(SLOTS[0])
    else:
        delta = MessagesInputDelta(SLOTS[0])
    return EventTemplate(MessagesBlockDelta(index=index, delta=delta), partial(event, name="content_block_delta"))
