"""Answers as Ollama writes them: objects with what is new, and a last one with counts and durations."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from lsv.request.outputs import Chunk, PositionLogprobs
from lsv_api.http.context import Exchange
from lsv_api.http.sse import SLOTS, EventTemplate, StreamForm
from lsv_api.ollama.records import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaMadeCall,
    OllamaMadeFunction,
)
from lsv_api.openai.asking import Asked
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.openai.logprobs import LogprobWriter
from lsv_api.records.responses import ChatLogprob, Delta, ToolCallDelta

_encoder = msgspec.json.Encoder()
_NANO = 1_000_000_000
_ENDED = {"tool_calls": "stop"}
"""Reasons why an answer ended that Ollama calls differently."""


def _line(body: bytes) -> bytes:
    return body + b"\n"


def write_line(record: msgspec.Struct) -> bytes:
    """A record as a line of a stream."""
    return _line(_encoder.encode(record))


LINES = StreamForm(content_type="application/x-ndjson", ping=None, end=b"", error=_line)
"""A line of JSON for each object. Nothing can be sent that clients pass over."""


def written_at() -> datetime:
    """When an object is written, as it says itself."""
    return datetime.now(UTC)


class Piece(msgspec.Struct):
    """What an object adds to an answer."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[OllamaMadeCall] = ()


class AnswerWriter:
    """Writes one answer. Subclasses say how a piece of it is written.

    ``top`` is how many candidates a position shows, None for no log probabilities.
    """

    def __init__(self, asked: Asked, exchange: Exchange, model: str, top: int | None) -> None:
        self._exchange = exchange
        self._model = model
        self._top = top
        self._logprobs = LogprobWriter(asked.served.client.tokenizer, as_ids=False)
        self._scored: list[PositionLogprobs] = []
        self._calls = Calls()
        self._asked_at = time.monotonic()
        self._growing = GrowingAnswer(asked, exchange, watch=self.watch)

    def watch(self, chunk: Chunk) -> None:
        """See a chunk before what it adds is written."""
        if self._top is not None:
            self._scored += chunk.logprobs or ()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The answer as it grows, a line of JSON an object."""
        texts = self._template()
        async for deltas in self._growing.deltas():
            data = b""
            for piece in self._pieces(deltas):
                if piece.thinking or piece.calls or self._scored:
                    data += write_line(self._object(piece))
                else:
                    data += texts.fill(written_at(), piece.text)
            if data:
                yield data
        ended = self._calls.end()
        if ended:
            yield write_line(self._object(Piece(calls=ended)))
        yield write_line(self._complete(self._object(Piece())))

    async def whole(self) -> OllamaAnswer:
        """The whole answer as one object."""
        calls: list[OllamaMadeCall] = []
        async for deltas in self._growing.deltas():
            for piece in self._pieces(deltas):
                calls += piece.calls
        calls += self._calls.end()
        reader = self._growing.reader
        return self._complete(self._object(Piece(reader.text, reader.reasoning or "", calls)))

    def write(self, piece: Piece, shared: dict[str, Any]) -> OllamaAnswer:
        raise NotImplementedError

    def _pieces(self, deltas: Sequence[Delta]) -> Iterator[Piece]:
        for delta in deltas:
            calls = self._calls.add(delta.tool_calls) if delta.tool_calls else ()
            piece = Piece(delta.content or "", delta.reasoning or "", calls)
            if piece.text or piece.thinking or piece.calls:
                yield piece

    def _object(self, piece: Piece) -> OllamaAnswer:
        return self.write(
            piece,
            {
                "model": self._model,
                "created_at": written_at(),
                "done": False,
                "logprobs": self._take_logprobs(),
            },
        )

    def _template(self) -> EventTemplate:
        """Objects with new text and nothing else."""
        when, text = SLOTS[:2]
        shared = {"model": self._model, "created_at": when, "done": False}
        return EventTemplate(self.write(Piece(text), shared), write_line)

    def _take_logprobs(self) -> list[ChatLogprob] | UnsetType:
        """The log probabilities of the tokens since the last object."""
        if self._top is None or not self._scored:
            return UNSET
        shown = self._logprobs.chat(self._scored, self._top).content
        self._scored = []
        return shown

    def _complete(self, last: OllamaAnswer) -> OllamaAnswer:
        """Add why the answer has ended, its counts, and what it took: before the engine was asked, up to the first
        token, and from there on.
        """
        now, usage = time.monotonic(), self._growing.usage.usage()
        first = self._exchange.first_token or now
        finish = self._growing.finish or "stop"
        last.done, last.done_reason = True, _ENDED.get(finish, finish)
        last.total_duration = nanoseconds(now - self._exchange.started)
        last.load_duration = nanoseconds(self._asked_at - self._exchange.started)
        last.prompt_eval_count, last.eval_count = usage.prompt_tokens, usage.completion_tokens
        last.prompt_eval_duration = nanoseconds(first - self._asked_at)
        last.eval_duration = nanoseconds(now - first)
        return last


class ChatWriter(AnswerWriter):
    """Writes answers of /api/chat."""

    def write(self, piece: Piece, shared: dict[str, Any]) -> OllamaChatAnswer:
        message = OllamaAnswerMessage(content=piece.text, thinking=piece.thinking or UNSET)
        if piece.calls:
            message.tool_calls = list(piece.calls)
        return OllamaChatAnswer(message=message, **shared)


class GenerateWriter(AnswerWriter):
    """Writes answers of /api/generate. Those to a prompt in a template end with the ``context`` of the next one."""

    def __init__(self, asked: Asked, exchange: Exchange, model: str, top: int | None, *, raw: bool) -> None:
        super().__init__(asked, exchange, model, top)
        self._context = None if raw else list(asked.request.prompt.ids)

    def watch(self, chunk: Chunk) -> None:
        super().watch(chunk)
        if self._context is not None:
            self._context += chunk.ids

    def write(self, piece: Piece, shared: dict[str, Any]) -> OllamaGenerateAnswer:
        return OllamaGenerateAnswer(response=piece.text, thinking=piece.thinking or UNSET, **shared)

    def _complete(self, last: OllamaAnswer) -> OllamaAnswer:
        assert isinstance(last, OllamaGenerateAnswer)
        last.context = UNSET if self._context is None else self._context
        return super()._complete(last)


class Calls:
    """Puts calls together from their pieces: Ollama writes them whole."""

    def __init__(self) -> None:
        self._index = -1
        self._id = self._name = ""
        self._arguments: list[str] = []

    def add(self, deltas: Sequence[ToolCallDelta]) -> list[OllamaMadeCall]:
        """The calls that are complete now that these pieces have come."""
        made = []
        for delta in deltas:
            if delta.index != self._index:
                made += self.end()
                self._index, self._arguments = delta.index, []
                self._id, self._name = delta.id or "", delta.function.name or ""
            self._arguments.append(delta.function.arguments or "")
        return made

    def end(self) -> list[OllamaMadeCall]:
        """The last call, once it is complete. One that was cut off is left out: its arguments are not an object."""
        if not self._name:
            return []
        try:
            arguments = msgspec.json.decode("".join(self._arguments) or "{}", type=dict[str, Any])
        except msgspec.DecodeError:
            return []
        finally:
            name, self._name = self._name, ""
        function = OllamaMadeFunction(index=self._index, name=name, arguments=arguments)
        return [OllamaMadeCall(id=self._id, function=function)]


def nanoseconds(seconds: float) -> int:
    return max(1, int(seconds * _NANO))
