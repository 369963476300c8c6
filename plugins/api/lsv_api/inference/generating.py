"""POST /inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec

from lsv.engine.answers import Answers
from lsv.request.outputs import PositionLogprobs
from lsv_api.http.context import Exchange
from lsv_api.http.failures import Unsupported
from lsv_api.http.reply import check_stream, stream_response
from lsv_api.http.sse import event
from lsv_api.inference.records import InferenceChoice, InferenceParams, InferenceRequest, InferenceResponse
from lsv_api.openai.asking import Asked, ask_text, naming_fields
from lsv_api.openai.completions import DEFAULT_MAX_TOKENS
from lsv_api.openai.generation import UsageCounter, collect, run
from lsv_api.openai.logprobs import LogprobWriter, prompt_logprobs
from lsv_api.records.requests import CompletionRequest, StreamOptions
from lsv_api.records.responses import ChatLogprobs

_FIELDS = {"prompt": "token_ids"} | {name: f"sampling_params.{name}" for name in InferenceParams.__struct_fields__}
"""Fields of this route by the names that completions have for them."""


async def generate(exchange: Exchange) -> InferenceResponse | None:
    body = await exchange.body(InferenceRequest)
    served = exchange.served(body.model)
    if body.features:
        raise Unsupported(
            "features is not available on this server: send media in messages to /v1/chat/completions", param="features"
        )
    completion = _as_completion(body)
    with naming_fields(_FIELDS):
        check_stream(completion, exchange.api.options)
        id = f"infer-{exchange.key}"
        asked = await ask_text(completion, served, exchange, id, default_max_tokens=DEFAULT_MAX_TOKENS)
        writer = InferenceWriter(asked, exchange, body.request_id or exchange.key, completion.stream_options)
        if not body.stream:
            return await writer.whole()
        await stream_response(exchange, writer.events())
    return None


def _as_completion(body: InferenceRequest) -> CompletionRequest:
    """The same request as one of completions."""
    params = {} if body.sampling_params is None else msgspec.structs.asdict(body.sampling_params)
    return CompletionRequest(
        prompt=[*body.token_ids],
        stream=body.stream,
        stream_options=body.stream_options,
        priority=body.priority,
        cache_salt=body.cache_salt,
        **params,
    )


class InferenceWriter:
    """Writes the answers to one prompt as token ids."""

    def __init__(self, asked: Asked, exchange: Exchange, request_id: str, options: StreamOptions | None) -> None:
        assert asked.request.sampling is not None
        self._asked = asked
        self._exchange = exchange
        self._id = request_id
        self._options = options
        self._top = asked.request.sampling.logprobs
        self._logprobs = LogprobWriter(asked.served.client.tokenizer, as_ids=False)

    async def whole(self) -> InferenceResponse:
        asked = self._asked
        (answers,), usage = await collect(asked.request, asked.served, self._exchange, asked.origin)
        scored = answers.prompt_logprobs
        return InferenceResponse(
            request_id=self._id,
            choices=self._choices(answers),
            prompt_logprobs=None if scored is None else prompt_logprobs(scored),
            usage=usage.usage(),
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        asked, usage = self._asked, UsageCounter(self._asked.request)
        async with run(asked.request, asked.served, self._exchange, asked.origin) as chunks:
            async for chunk in chunks:
                usage.add(chunk)
                self._exchange.count_tokens(len(chunk.ids))
                choice = InferenceChoice(
                    index=chunk.index,
                    token_ids=list(chunk.ids),
                    finish_reason=chunk.finish,
                    logprobs=self._shown(chunk.logprobs or ()),
                )
                counts = usage.in_chunk(self._options)
                yield event(InferenceResponse(request_id=self._id, choices=[choice], usage=counts))
        if self._options is not None and self._options.include_usage:
            yield event(InferenceResponse(request_id=self._id, choices=[], usage=usage.usage()))

    def _choices(self, answers: Answers) -> list[InferenceChoice]:
        return [
            InferenceChoice(
                index=index,
                token_ids=answer.ids,
                finish_reason=answer.finish,
                logprobs=self._shown(answer.logprobs),
            )
            for index, answer in enumerate(answers.best())
        ]

    def _shown(self, positions: Sequence[PositionLogprobs]) -> ChatLogprobs | None:
        return None if self._top is None else self._logprobs.chat(positions, self._top)
