"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec
from sanic.response import HTTPResponse

from lsv.errors import BadRequest
from lsv.request.outputs import Chunk, PositionLogprobs
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import Heading, check_stream, json_response, stream_response
from lsv_api.http.sse import event
from lsv_api.openai.answers import Answer, Collected, Job, Tally, collect, numbered, running
from lsv_api.openai.logprobs import LogprobWriter, prompt_logprobs
from lsv_api.openai.prompts import EncodedPrompt, encode_prompts
from lsv_api.openai.sampling import fit_max_tokens, sampling_params
from lsv_api.options import ApiOptions
from lsv_api.records.requests import CompletionRequest
from lsv_api.records.responses import CompletionChoice, CompletionLogprobs, CompletionResponse

DEFAULT_MAX_TOKENS = 16


async def create_completion(exchange: Exchange) -> HTTPResponse | None:
    body = await exchange.body(CompletionRequest)
    served = exchange.served(body.model)
    check_stream(body)
    prompts = await encode_prompts(
        body.prompt,
        served,
        special=body.add_special_tokens is not False,
        keep=body.truncate_prompt_tokens,
        param="prompt",
    )
    heading = Heading.of("cmpl", served, exchange)
    jobs = [_job(body, served, prompt, f"{heading.id}-{index}") for index, prompt in enumerate(prompts)]
    writer = CompletionWriter(body, served, heading, exchange.api.options)
    if body.stream:
        await stream_response(exchange, writer.events(jobs, exchange))
        return None
    return json_response(writer.whole(await collect(jobs, body, served, exchange), prompts))


def _job(body: CompletionRequest, served: Served, prompt: EncodedPrompt, request_id: str) -> Job:
    asked = 1 if _prompt_only(body) else body.max_tokens
    max_tokens = fit_max_tokens(asked, DEFAULT_MAX_TOKENS, len(prompt.ids), served, "prompt")
    params = sampling_params(body, served, max_tokens, body.logprobs)
    if body.echo and body.logprobs is not None:
        if body.stream and params.candidates > 1:
            raise BadRequest("a stream with echo and logprobs takes n=1", param="n")
        params = params.replace(prompt_logprobs=max(body.logprobs, body.prompt_logprobs or 0))
    return Job(request_id, prompt, params)


def _prompt_only(body: CompletionRequest) -> bool:
    """``echo`` with no new tokens asks for the prompt's log probabilities; one token is run and dropped."""
    return bool(body.echo) and body.max_tokens == 0 and not body.stream


class CompletionWriter:
    """Writes answers as completion objects and events."""

    def __init__(self, body: CompletionRequest, served: Served, heading: Heading, options: ApiOptions) -> None:
        self._body = body
        self._served = served
        self._heading = heading
        self._logprobs = LogprobWriter(bool(body.return_tokens_as_token_ids) or options.return_tokens_as_token_ids)

    def whole(self, collected: Collected, prompts: Sequence[EncodedPrompt]) -> CompletionResponse:
        usage = collected.usage
        if _prompt_only(self._body):
            usage = msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
        choices = [
            self._choice(index, answer, prompts[answer.prompt], collected.prompt_logprobs[answer.prompt])
            for index, answer in numbered(collected)
        ]
        return CompletionResponse(choices=choices, usage=usage, **self._heading.fields())

    async def events(self, jobs: Sequence[Job], exchange: Exchange) -> AsyncGenerator[bytes, None]:
        tally = Tally([job.prompt for job in jobs])
        offsets: dict[tuple[int, int], int] = {}
        async with running(jobs, self._body, self._served, exchange) as chunks:
            async for job, chunk in chunks:
                tally.add(chunk)
                exchange.count_tokens(len(chunk.ids))
                first = (job, chunk.index) not in offsets
                if not (first and self._body.echo) and _says_nothing(chunk):
                    continue
                offset = offsets.get((job, chunk.index), 0)
                choice, offsets[job, chunk.index] = self._delta(jobs[job], job, chunk, first, offset)
                yield event(self._chunk([choice], tally))
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield event(CompletionResponse(choices=[], usage=tally.usage(), **self._heading.fields()))

    def _chunk(self, choices: list[CompletionChoice], tally: Tally) -> CompletionResponse:
        usage = tally.in_chunk(self._body.stream_options)
        return CompletionResponse(choices=choices, usage=usage, **self._heading.fields())

    def _choice(
        self,
        index: int,
        answer: Answer,
        prompt: EncodedPrompt,
        scored: tuple[PositionLogprobs | None, ...] | None,
    ) -> CompletionChoice:
        text = "" if _prompt_only(self._body) else "".join(answer.text)
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

    def _delta(self, job: Job, number: int, chunk: Chunk, first: bool, offset: int) -> tuple[CompletionChoice, int]:
        """The choice of one event, and where the next one's tokens begin."""
        text = chunk.text
        positions: list[PositionLogprobs | None] = [*(chunk.logprobs or ())]
        if first and self._body.echo:
            text = self._prompt_text(job.prompt) + text
            positions = [*(chunk.prompt_logprobs or ()), *positions]
        choice = CompletionChoice(
            index=number * job.params.n + chunk.index,
            text=text,
            logprobs=self._shown(positions, job.prompt, offset),
            finish_reason=chunk.finish,
            stop_reason=chunk.stop,
        )
        return choice, offset + sum(len(position[0].text) for position in positions if position)

    def _shown(
        self, positions: Sequence[PositionLogprobs | None], prompt: EncodedPrompt, offset: int
    ) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        return self._logprobs.completion(positions, prompt.ids, offset, self._body.logprobs)

    def _prompt_text(self, prompt: EncodedPrompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self._served.client.tokenizer.decode(
            prompt.ids, skip_special_tokens=self._body.skip_special_tokens is not False
        )


def _says_nothing(chunk: Chunk) -> bool:
    """Text held back until it is complete makes chunks that have no news for the reader."""
    return not (chunk.text or chunk.logprobs or chunk.finish)
