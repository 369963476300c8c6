"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from sanic.response import HTTPResponse

from lsv.engine.answers import Answer, Answers
from lsv.errors import BadRequest
from lsv.request.outputs import Chunk, PositionLogprobs
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import Envelope, check_stream, json_response, stream_response
from lsv_api.http.sse import SLOTS, EventTemplate, event
from lsv_api.openai.generation import UsageCounter, collect, make_request, run
from lsv_api.openai.logprobs import LogprobWriter, prompt_logprobs
from lsv_api.openai.prompts import encode_prompts
from lsv_api.openai.sampling import sampling_params
from lsv_api.options import ApiOptions
from lsv_api.records.requests import CompletionRequest
from lsv_api.records.responses import CompletionChoice, CompletionLogprobs, CompletionResponse, Usage

DEFAULT_MAX_TOKENS = 16


async def create_completion(exchange: Exchange) -> HTTPResponse | None:
    body = await exchange.body(CompletionRequest)
    served = exchange.served(body.model)
    check_stream(body)
    prompts = await encode_prompts(body, served, exchange.api)
    params = _params(body, served)
    envelope = Envelope.of("cmpl", served, exchange)
    request = make_request(body, prompts, params, envelope.id, exchange)
    request = served.admission.admit(request, default_max_tokens=DEFAULT_MAX_TOKENS, strict=True)
    writer = CompletionWriter(body, served, envelope, exchange.api.options)
    if body.stream:
        await stream_response(exchange, writer.events(request, exchange))
        return None
    return json_response(writer.whole(request, *await collect(request, served, exchange)))


def _params(body: CompletionRequest, served: Served) -> SamplingParams:
    params = sampling_params(body, served, 1 if _prompt_only(body) else body.max_tokens, body.logprobs)
    if body.echo and body.logprobs is not None:
        if body.stream and params.candidates > 1:
            raise BadRequest("a stream with echo and logprobs takes n=1", param="n")
        params = params.replace(prompt_logprobs=max(body.logprobs, body.prompt_logprobs or 0))
    return params


def _prompt_only(body: CompletionRequest) -> bool:
    """``echo`` with no new tokens asks for the prompt's log probabilities; one token is generated and dropped."""
    return bool(body.echo) and body.max_tokens == 0 and not body.stream


class CompletionWriter:
    """Writes answers as completion objects and events."""

    def __init__(self, body: CompletionRequest, served: Served, envelope: Envelope, options: ApiOptions) -> None:
        self._body = body
        self._served = served
        self._envelope = envelope
        self._logprobs = LogprobWriter(
            served.client.tokenizer,
            as_ids=bool(body.return_tokens_as_token_ids) or options.return_tokens_as_token_ids,
        )

    def whole(self, request: RequestSpec, answers: Sequence[Answers], used: UsageCounter) -> CompletionResponse:
        """All choices: prompt by prompt, answer by answer."""
        usage = used.usage()
        if _prompt_only(self._body):
            usage = msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
        found = [
            (answer, prompt, of_prompt.prompt_logprobs)
            for prompt, of_prompt in zip(request.prompts, answers, strict=True)
            for answer in of_prompt.best()
        ]
        choices = [self._choice(index, *choice) for index, choice in enumerate(found)]
        return CompletionResponse(choices=choices, usage=usage, **self._envelope.fields())

    async def events(self, request: RequestSpec, exchange: Exchange) -> AsyncGenerator[bytes, None]:
        usage = UsageCounter(request)
        offsets: dict[tuple[int, int], int] = {}
        deltas: dict[tuple[int, int], EventTemplate] = {}
        async with run(request, self._served, exchange) as chunks:
            async for chunk in chunks:
                usage.add(chunk)
                exchange.count_tokens(len(chunk.ids))
                key = (chunk.prompt, chunk.index)
                first = key not in offsets
                if not (first and self._body.echo) and _is_empty(chunk):
                    continue
                counts = usage.in_chunk(self._body.stream_options)
                offset = offsets.get(key, 0)
                choice, offsets[key] = self._delta(request.prompts[chunk.prompt], chunk, first, offset)
                if chunk.finish is not None:
                    yield event(CompletionResponse(choices=[choice], usage=counts, **self._envelope.fields()))
                    continue
                if first:
                    deltas[key] = self._template(choice.index, counts)
                yield deltas[key].fill(choice.text, choice.logprobs, counts)
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield event(CompletionResponse(choices=[], usage=usage.usage(), **self._envelope.fields()))

    def _template(self, index: int, usage: Usage | UnsetType | None) -> EventTemplate:
        """Events of an answer that grows: they are filled with the text, the log probabilities and the usage so far."""
        text, logprobs, counts = SLOTS
        choice = CompletionChoice(index=index, text=text, logprobs=logprobs)
        shown = UNSET if usage is UNSET else counts
        return EventTemplate(CompletionResponse(choices=[choice], usage=shown, **self._envelope.fields()))

    def _choice(
        self,
        index: int,
        answer: Answer,
        prompt: Prompt,
        scored: tuple[PositionLogprobs | None, ...] | None,
    ) -> CompletionChoice:
        text = "" if _prompt_only(self._body) else answer.text
        positions: list[PositionLogprobs | None] = [] if _prompt_only(self._body) else [*answer.logprobs]
        if self._body.echo:
            text, positions = self._prompt_text(prompt) + text, [*(scored or ()), *positions]
        wanted = self._body.prompt_logprobs is not None and scored is not None
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=self._shown(positions, prompt, 0),
            finish_reason="length" if _prompt_only(self._body) else answer.finish,
            stop_reason=answer.stop,
            prompt_logprobs=prompt_logprobs(scored) if wanted and scored is not None else None,
        )

    def _delta(self, prompt: Prompt, chunk: Chunk, first: bool, offset: int) -> tuple[CompletionChoice, int]:
        """The choice of one event, and where the next one's tokens begin."""
        text = chunk.text
        positions: list[PositionLogprobs | None] = [*(chunk.logprobs or ())]
        if first and self._body.echo:
            text = self._prompt_text(prompt) + text
            positions = [*(chunk.prompt_logprobs or ()), *positions]
        choice = CompletionChoice(
            index=chunk.prompt * (self._body.n or 1) + chunk.index,
            text=text,
            logprobs=self._shown(positions, prompt, offset),
            finish_reason=chunk.finish,
            stop_reason=chunk.stop,
        )
        return choice, offset + sum(len(position[0].text) for position in positions if position)

    def _shown(
        self, positions: Sequence[PositionLogprobs | None], prompt: Prompt, offset: int
    ) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        return self._logprobs.completion(positions, prompt.ids, offset, self._body.logprobs)

    def _prompt_text(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self._served.client.tokenizer.decode(
            prompt.ids, skip_special_tokens=self._body.skip_special_tokens is not False
        )


def _is_empty(chunk: Chunk) -> bool:
    """While text is held back, chunks have nothing to show."""
    return not (chunk.text or chunk.logprobs or chunk.finish)
