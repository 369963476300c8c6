"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import UNSET
from sanic.response import HTTPResponse

from lsv.engine.answers import Answer, Answers
from lsv.errors import BadRequest
from lsv.request.outputs import Chunk, PositionLogprobs
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import Envelope, check_stream, json_response, stream_response
from lsv_api.http.sse import SLOTS, EventTemplate, event
from lsv_api.openai.conversation import encode_chat, final_text
from lsv_api.openai.generation import UsageCounter, collect, make_request, run
from lsv_api.openai.logprobs import LogprobWriter, prompt_logprobs
from lsv_api.openai.sampling import sampling_params
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
    check_stream(body)
    prompt = await encode_chat(body, served, exchange)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = sampling_params(body, served, max_tokens, _logprobs(body))
    envelope = Envelope.of("chatcmpl", served, exchange)
    request = make_request(body, [prompt], params, envelope.id, exchange)
    request = served.admission.admit(request, field="messages", strict=True)
    writer = ChatWriter(body, served, envelope, exchange.api.options)
    if body.stream:
        await stream_response(exchange, writer.events(request, served, exchange))
        return None
    (answers,), usage = await collect(request, served, exchange)
    return json_response(writer.whole(answers, usage))


def _logprobs(body: ChatRequest) -> int | None:
    """``logprobs`` switches them on, ``top_logprobs`` says how many candidates a position shows."""
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.top_logprobs is not None and body.top_logprobs < 0:
        raise BadRequest(f"top_logprobs must be at least 0, got {body.top_logprobs}", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


class ChatWriter:
    """Writes answers as chat completion objects and events."""

    def __init__(self, body: ChatRequest, served: Served, envelope: Envelope, options: ApiOptions) -> None:
        self._body = body
        self._envelope = envelope
        prompted = body.add_generation_prompt is not False and not body.continue_final_message
        self._role = options.response_role if prompted else body.messages[-1].role
        same_role = body.messages[-1].role == self._role
        self._echo = final_text(body.messages) if body.echo and same_role else ""
        self._logprobs = LogprobWriter(
            served.client.tokenizer,
            as_ids=bool(body.return_tokens_as_token_ids) or options.return_tokens_as_token_ids,
        )

    def whole(self, answers: Answers, usage: UsageCounter) -> ChatResponse:
        scored = answers.prompt_logprobs
        return ChatResponse(
            choices=[self._choice(index, answer) for index, answer in enumerate(answers.best())],
            usage=usage.usage(),
            prompt_logprobs=None if scored is None else prompt_logprobs(scored),
            **self._envelope.fields(),
        )

    async def events(self, request: RequestSpec, served: Served, exchange: Exchange) -> AsyncGenerator[bytes, None]:
        usage = UsageCounter(request)
        deltas: dict[int, EventTemplate] = {}
        async with run(request, served, exchange) as chunks:
            async for chunk in chunks:
                usage.add(chunk)
                exchange.count_tokens(len(chunk.ids))
                data = b""
                if chunk.index not in deltas:
                    deltas[chunk.index] = self._delta(chunk.index, usage)
                    data = b"".join(event(self._chunk(choice, usage)) for choice in self._opening(chunk.index))
                if chunk.text or chunk.logprobs:
                    shown = self._shown(chunk.logprobs or ())
                    data += deltas[chunk.index].fill(chunk.text, shown, usage.in_chunk(self._body.stream_options))
                if chunk.finish is not None:
                    data += event(self._chunk(_end(chunk), usage))
                if data:
                    yield data
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield event(ChatChunk(choices=[], usage=usage.usage(), **self._envelope.fields()))

    def _delta(self, index: int, usage: UsageCounter) -> EventTemplate:
        """Events with new text: they are filled with the text, the log probabilities and the usage so far."""
        text, logprobs, counts = SLOTS
        choice = ChatChunkChoice(index=index, delta=Delta(content=text), logprobs=logprobs)
        shown = UNSET if usage.in_chunk(self._body.stream_options) is UNSET else counts
        return EventTemplate(ChatChunk(choices=[choice], usage=shown, **self._envelope.fields()))

    def _chunk(self, choice: ChatChunkChoice, usage: UsageCounter) -> ChatChunk:
        shown = usage.in_chunk(self._body.stream_options)
        return ChatChunk(choices=[choice], usage=shown, **self._envelope.fields())

    def _choice(self, index: int, answer: Answer) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=ChatMessage(role=self._role, content=self._echo + answer.text),
            logprobs=self._shown(answer.logprobs),
            finish_reason=answer.finish,
            stop_reason=answer.stop,
        )

    def _opening(self, index: int) -> list[ChatChunkChoice]:
        """The role comes first, then what is echoed."""
        role = ChatChunkChoice(index=index, delta=Delta(role=self._role, content=""))
        if not self._echo:
            return [role]
        return [role, ChatChunkChoice(index=index, delta=Delta(content=self._echo))]

    def _shown(self, positions: tuple[PositionLogprobs, ...] | list[PositionLogprobs]) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return self._logprobs.chat(positions, self._body.top_logprobs or 0)


def _end(chunk: Chunk) -> ChatChunkChoice:
    """The choice of an answer's last event."""
    return ChatChunkChoice(index=chunk.index, delta=Delta(), finish_reason=chunk.finish, stop_reason=chunk.stop)
