"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from sanic.response import HTTPResponse

from lsv.engine.answers import Answer, Answers
from lsv.request.outputs import Chunk, PositionLogprobs
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import Envelope, check_stream, stream_response
from lsv_api.http.sse import SLOTS, EventTemplate, event
from lsv_api.openai.form_origin import FormOrigin
from lsv_api.openai.generation import UsageCounter, collect, make_request, respond, run
from lsv_api.openai.handover import read_handover
from lsv_api.openai.logprobs import CompletionColumns, LogprobWriter, TextPlace, prompt_logprobs
from lsv_api.openai.prompts import encode_prompts
from lsv_api.openai.sampling import sampling_params
from lsv_api.openai.structured import form_origin
from lsv_api.options import ApiOptions
from lsv_api.records.requests import CompletionRequest
from lsv_api.records.responses import CompletionChoice, CompletionResponse, Usage
from lsv_base.errors import BadRequest

DEFAULT_MAX_TOKENS = 16


async def create_completion(exchange: Exchange) -> HTTPResponse | None:
    body = await exchange.body(CompletionRequest)
    served = exchange.served(body.model)
    check_stream(body, exchange.api.options)
    handover = read_handover(body, served)
    prompts = await encode_prompts(body, served, exchange)
    params = _params(body, served)
    envelope = Envelope.of("cmpl", served, exchange)
    request = make_request(body, prompts, params, envelope.id, exchange, handover=handover)
    request = served.admission.admit(request, default_max_tokens=DEFAULT_MAX_TOKENS, strict=True)
    writer = CompletionWriter(body, served, envelope, exchange.api.options)
    origin = form_origin(body)
    if body.stream:
        await stream_response(exchange, writer.events(request, exchange, origin))
        return None
    answers, usage = await collect(request, served, exchange, origin)
    return await respond(exchange, request, usage, handover, lambda: writer.whole(request, answers, usage))


def _params(body: CompletionRequest, served: Served) -> SamplingParams:
    params = sampling_params(body, served, 1 if _prompt_only(body) else body.max_tokens, body.logprobs)
    if body.echo and body.logprobs is not None:
        if body.stream and params.candidates > 1:
            raise BadRequest("a stream with echo and logprobs takes n=1", param="n")
        both = (body.logprobs, body.prompt_logprobs or 0)
        params = params.replace(prompt_logprobs=-1 if -1 in both else max(both))
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
        self._top = served.admission.candidates_shown(body.logprobs, "logprobs")
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

    async def events(self, request: RequestSpec, exchange: Exchange, origin: FormOrigin) -> AsyncGenerator[bytes, None]:
        usage = UsageCounter(request)
        places: dict[tuple[int, int], TextPlace] = {}
        deltas: dict[tuple[int, int], EventTemplate] = {}
        async with run(request, self._served, exchange, origin) as chunks:
            async for chunk in chunks:
                usage.add(chunk)
                exchange.count_tokens(len(chunk.ids))
                key = (chunk.prompt, chunk.index)
                first = key not in places
                if not (first and self._body.echo) and self._is_empty(chunk):
                    continue
                counts = usage.in_chunk(self._body.stream_options)
                place = places.setdefault(key, self._begin())
                choice = self._delta(request.prompts[chunk.prompt], chunk, first, place)
                if first or chunk.finish is not None:
                    yield event(CompletionResponse(choices=[choice], usage=counts, **self._envelope.fields()))
                    continue
                if key not in deltas:
                    deltas[key] = self._template(choice.index, counts)
                ids = (choice.token_ids,) if self._body.return_token_ids else ()
                yield deltas[key].fill(choice.text, choice.logprobs, *ids, counts)
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield event(CompletionResponse(choices=[], usage=usage.usage(), **self._envelope.fields()))

    def _template(self, index: int, usage: Usage | UnsetType | None) -> EventTemplate:
        """Events of an answer that grows: they are filled with what is new, and the usage so far."""
        text, logprobs, ids, counts = SLOTS
        choice = CompletionChoice(index=index, text=text, logprobs=logprobs)
        if self._body.return_token_ids:
            choice.token_ids = ids
        shown = UNSET if usage is UNSET else counts
        return EventTemplate(CompletionResponse(choices=[choice], usage=shown, **self._envelope.fields()))

    def _choice(
        self,
        index: int,
        answer: Answer,
        prompt: Prompt,
        scored: tuple[PositionLogprobs | None, ...] | None,
    ) -> CompletionChoice:
        echoed = self._prompt_text(prompt) if self._body.echo else ""
        columns = self._columns(self._begin())
        if columns is not None:
            self._echo(columns, prompt, scored, echoed)
            columns.extend(() if _prompt_only(self._body) else answer.logprobs)
        wanted = self._body.prompt_logprobs is not None and scored is not None
        return CompletionChoice(
            index=index,
            text=echoed if _prompt_only(self._body) else echoed + answer.text,
            logprobs=None if columns is None else columns.shown,
            finish_reason="length" if _prompt_only(self._body) else answer.finish,
            stop_reason=answer.stop,
            prompt_logprobs=prompt_logprobs(scored) if wanted and scored is not None else None,
            token_ids=self._ids(() if _prompt_only(self._body) else answer.ids),
            prompt_token_ids=self._ids(prompt.ids),
        )

    def _delta(self, prompt: Prompt, chunk: Chunk, first: bool, place: TextPlace) -> CompletionChoice:
        """The choice of one event, whose tokens begin at ``place``."""
        echoed = self._prompt_text(prompt) if first and self._body.echo else ""
        columns = self._columns(place)
        if columns is not None:
            if first:
                self._echo(columns, prompt, chunk.prompt_logprobs, echoed)
            columns.extend(chunk.logprobs or ())
        return CompletionChoice(
            index=chunk.prompt * (self._body.n or 1) + chunk.index,
            text=echoed + chunk.text,
            logprobs=None if columns is None else columns.shown,
            finish_reason=chunk.finish,
            stop_reason=chunk.stop,
            token_ids=self._ids(chunk.ids),
            prompt_token_ids=self._ids(prompt.ids) if first else UNSET,
        )

    def _begin(self) -> TextPlace:
        return TextPlace(self._served.client.tokenizer)

    def _columns(self, place: TextPlace) -> CompletionColumns | None:
        if self._top is None:
            return None
        skip_special = self._body.skip_special_tokens is not False
        return self._logprobs.completion(self._top, place, skip_special=skip_special)

    def _echo(
        self,
        columns: CompletionColumns,
        prompt: Prompt,
        scored: tuple[PositionLogprobs | None, ...] | None,
        text: str,
    ) -> None:
        if self._body.echo and scored is not None:
            columns.echo(prompt.ids, scored, text)

    def _ids(self, ids: Sequence[int]) -> list[int] | UnsetType:
        return list(ids) if self._body.return_token_ids else UNSET

    def _is_empty(self, chunk: Chunk) -> bool:
        """While text is held back, chunks have nothing to show, unless ids are."""
        return not (chunk.text or chunk.logprobs or chunk.finish or (self._body.return_token_ids and chunk.ids))

    def _prompt_text(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self._served.client.tokenizer.decode(
            prompt.ids, skip_special_tokens=self._body.skip_special_tokens is not False
        )
