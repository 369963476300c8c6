"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from sanic.response import HTTPResponse

from lsv.engine.answers import Answer, Answers
from lsv.errors import BadRequest
from lsv.request.outputs import Chunk, PositionLogprobs
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import Envelope, check_stream, stream_response
from lsv_api.http.sse import SLOTS, EventTemplate, event
from lsv_api.openai.conversation import encode_chat, final_text, forbids_thinking, leaves_thinking_off
from lsv_api.openai.form_origin import FormOrigin
from lsv_api.openai.generation import UsageCounter, collect, make_request, respond, run
from lsv_api.openai.handover import read_handover
from lsv_api.openai.logprobs import LogprobWriter, prompt_logprobs
from lsv_api.openai.reading import AnswerReader, AnswerReading
from lsv_api.openai.sampling import sampling_params
from lsv_api.openai.structured import form_origin
from lsv_api.openai.tools import Tools, force_calls, read_tools
from lsv_api.options import ApiOptions
from lsv_api.records.requests import ChatRequest
from lsv_api.records.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    Delta,
)


async def create_chat_completion(exchange: Exchange) -> HTTPResponse | None:
    body = await exchange.body(ChatRequest)
    served = exchange.served(body.model)
    check_stream(body, exchange.api.options)
    handover = read_handover(body, served)
    tools = await exchange.prepare(exchange.size, read_tools, body, served, exchange.api.options)
    prompt = await encode_chat(body, served, exchange, tools.shown)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    reading = AnswerReading(body, served, tools, prompt.text or "")
    sampling = sampling_params(body, served, max_tokens, _logprobs(body, served))
    params, origin = force_calls(sampling, tools, form_origin(body))
    params = reading.show_marks(params)
    envelope = Envelope.of("chatcmpl", served, exchange)
    silent = await _is_silent(body, prompt, served, exchange, tools, reading, params)
    thinking = reading.guide_thoughts(params, formed=silent or exchange.api.options.enable_in_reasoning)
    request = make_request(body, [prompt], params, envelope.id, exchange, thinking, handover=handover)
    request = served.admission.admit(request, field="messages", strict=True)
    writer = ChatWriter(body, served, envelope, exchange.api.options, reading)
    if body.stream:
        await stream_response(exchange, writer.events(request, served, exchange, origin))
        return None
    (answers,), usage = await collect(request, served, exchange, origin, None if reading.is_plain else writer.read)
    return await respond(exchange, request, usage, handover, lambda: writer.whole(request, answers, usage))


async def _is_silent(
    body: ChatRequest,
    prompt: Prompt,
    served: Served,
    exchange: Exchange,
    tools: Tools,
    reading: AnswerReading,
    params: SamplingParams,
) -> bool:
    """Whether an answer with a form must not begin with thoughts.

    If the form forbids the model's usual first words, the model may begin to think, even if the request has turned
    thinking off or has not turned it on.
    """
    begins = reading.may_begin_thoughts(params)
    if begins == "never":
        return False
    if forbids_thinking(body, exchange.api.options):
        return True
    return begins == "by itself" and await leaves_thinking_off(body, prompt, served, exchange, tools.shown)


def _logprobs(body: ChatRequest, served: Served) -> int | None:
    """``logprobs`` switches them on, ``top_logprobs`` says how many candidates a position shows."""
    if body.top_logprobs and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.top_logprobs is not None and body.top_logprobs < -1:
        raise BadRequest(f"top_logprobs must be at least -1, got {body.top_logprobs}", param="top_logprobs")
    return served.admission.candidates_shown(body.top_logprobs or 0, "top_logprobs") if body.logprobs else None


class ChatWriter:
    """Writes answers as chat completion objects and events."""

    def __init__(
        self, body: ChatRequest, served: Served, envelope: Envelope, options: ApiOptions, reading: AnswerReading
    ) -> None:
        self._body = body
        self._reading = reading
        self._readers: dict[int, AnswerReader] = {}
        self._envelope = envelope
        prompted = body.add_generation_prompt is not False and not body.continue_final_message
        self._role = options.response_role if prompted else body.messages[-1].role
        same_role = body.messages[-1].role == self._role
        self._echo = final_text(body.messages) if body.echo and same_role else ""
        self._top = served.admission.candidates_shown(body.top_logprobs or 0, "top_logprobs") or 0
        self._logprobs = LogprobWriter(
            served.client.tokenizer,
            as_ids=bool(body.return_tokens_as_token_ids) or options.return_tokens_as_token_ids,
        )

    def read(self, chunk: Chunk) -> list[Delta]:
        """What a chunk adds to its answer, where answers are not plain text."""
        if chunk.index not in self._readers:
            self._readers[chunk.index] = self._reading.begin()
        return self._readers[chunk.index].read(chunk)

    def whole(self, request: RequestSpec, answers: Answers, usage: UsageCounter) -> ChatResponse:
        scored = answers.prompt_logprobs
        self._count_thoughts(usage)
        return ChatResponse(
            choices=[self._choice(index, answer) for index, answer in enumerate(answers.best())],
            usage=usage.usage(),
            prompt_logprobs=None if scored is None else prompt_logprobs(scored),
            prompt_token_ids=self._ids(request.prompt.ids),
            **self._envelope.fields(),
        )

    async def events(
        self, request: RequestSpec, served: Served, exchange: Exchange, origin: FormOrigin
    ) -> AsyncGenerator[bytes, None]:
        usage = UsageCounter(request)
        deltas: dict[int, EventTemplate] = {}
        async with run(request, served, exchange, origin) as chunks:
            async for chunk in chunks:
                usage.add(chunk)
                exchange.count_tokens(len(chunk.ids))
                data = b""
                if chunk.index not in deltas:
                    deltas[chunk.index] = self._delta(chunk.index, usage)
                    opening = [self._chunk(choice, usage) for choice in self._opening(chunk.index)]
                    opening[0].prompt_token_ids = self._ids(request.prompt.ids)
                    data = b"".join(map(event, opening))
                if not self._reading.is_plain:
                    data += self._read_events(chunk, usage)
                elif chunk.text or self._has_more(chunk):
                    data += deltas[chunk.index].fill(*self._news(chunk), usage.in_chunk(self._body.stream_options))
                if chunk.finish is not None:
                    data += event(self._chunk(self._end(chunk), usage))
                if data:
                    yield data
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield event(ChatChunk(choices=[], usage=usage.usage(), **self._envelope.fields()))

    def _read_events(self, chunk: Chunk, usage: UsageCounter) -> bytes:
        """Events for what a chunk adds to an answer that is read; the first one shows its log probabilities and ids."""
        deltas = self.read(chunk)
        self._count_thoughts(usage)
        if not deltas and self._has_more(chunk):
            deltas = [Delta(content="")]
        choices = [ChatChunkChoice(index=chunk.index, delta=delta) for delta in deltas]
        if choices:
            choices[0].logprobs = self._shown(chunk.logprobs or ())
            choices[0].token_ids = self._ids(chunk.ids)
        return b"".join(event(self._chunk(choice, usage)) for choice in choices)

    def _has_more(self, chunk: Chunk) -> bool:
        """Whether a chunk without text still has something to show."""
        return bool(chunk.logprobs or (self._body.return_token_ids and chunk.ids))

    def _count_thoughts(self, usage: UsageCounter) -> None:
        if self._reading.finds_thoughts:
            usage.count_thoughts(sum(reader.reasoning_tokens for reader in self._readers.values()))

    def _delta(self, index: int, usage: UsageCounter) -> EventTemplate:
        """Events with new text: they are filled with what ``_news`` gives, and the usage so far."""
        text, logprobs, ids, counts = SLOTS
        choice = ChatChunkChoice(index=index, delta=Delta(content=text), logprobs=logprobs)
        if self._body.return_token_ids:
            choice.token_ids = ids
        shown = UNSET if usage.in_chunk(self._body.stream_options) is UNSET else counts
        return EventTemplate(ChatChunk(choices=[choice], usage=shown, **self._envelope.fields()))

    def _news(self, chunk: Chunk) -> tuple[Any, ...]:
        """What a chunk brings: its text, its log probabilities and, if they are returned, its token ids."""
        ids = (chunk.ids,) if self._body.return_token_ids else ()
        return chunk.text, self._shown(chunk.logprobs or ()), *ids

    def _ids(self, ids: Sequence[int]) -> list[int] | UnsetType:
        return list(ids) if self._body.return_token_ids else UNSET

    def _chunk(self, choice: ChatChunkChoice, usage: UsageCounter) -> ChatChunk:
        shown = usage.in_chunk(self._body.stream_options)
        return ChatChunk(choices=[choice], usage=shown, **self._envelope.fields())

    def _choice(self, index: int, answer: Answer) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=self._message(answer),
            logprobs=self._shown(answer.logprobs),
            finish_reason=self._finish(answer.number, answer.finish, answer.stop),
            stop_reason=answer.stop,
            token_ids=self._ids(answer.ids),
        )

    def _message(self, answer: Answer) -> ChatMessage:
        reader = self._readers.get(answer.number)
        if reader is None:
            return ChatMessage(role=self._role, content=self._echo + answer.text)
        reader.finish()
        content = self._echo + reader.text
        return ChatMessage(
            role=self._role,
            content=content if content or not (reader.calls or reader.reasoning) else None,
            reasoning=reader.reasoning or UNSET,
            reasoning_content=reader.reasoning,
            tool_calls=reader.calls,
        )

    def _finish(self, number: int, finish: FinishReason | None, stop: int | str | None) -> str | None:
        """The finish reason. It is ``tool_calls`` if the answer has calls and no stop string or token cut the last one.

        OpenAI's own server reports this only if the model chose to call.
        """
        reader = self._readers.get(number)
        calls = reader is not None and bool(reader.calls) and (stop is None or reader.ends_whole)
        waits = calls and not self._reading.is_named
        return "tool_calls" if waits and finish is FinishReason.STOP else finish

    def _end(self, chunk: Chunk) -> ChatChunkChoice:
        """The choice of an answer's last event."""
        reason = self._finish(chunk.index, chunk.finish, chunk.stop)
        return ChatChunkChoice(index=chunk.index, delta=Delta(), finish_reason=reason, stop_reason=chunk.stop)

    def _opening(self, index: int) -> list[ChatChunkChoice]:
        """The role comes first, then what is echoed."""
        role = ChatChunkChoice(index=index, delta=Delta(role=self._role, content=""))
        if not self._echo:
            return [role]
        return [role, ChatChunkChoice(index=index, delta=Delta(content=self._echo))]

    def _shown(self, positions: tuple[PositionLogprobs, ...] | list[PositionLogprobs]) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return self._logprobs.chat(positions, self._top)
