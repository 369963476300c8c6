"""Running a request's prompts on the engine, and gathering their answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import cast

from msgspec import UNSET, UnsetType
from sanic.response import HTTPResponse

from lsv.engine.answers import Answers
from lsv.request.outputs import Chunk
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.request.thinking import Thinking
from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import json_response
from lsv_api.openai.form_origin import FIELD, NO_FORM, FormOrigin
from lsv_api.openai.handover import Handover
from lsv_api.openai.sampling import priority_of, tenancy
from lsv_api.preparing import LONG, SHORT
from lsv_api.records.requests import SampledRequest, StreamOptions
from lsv_api.records.responses import ChatResponse, CompletionDetails, CompletionResponse, PromptDetails, Usage
from lsv_base.errors import BadRequest


def make_request(
    body: SampledRequest,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    request_id: str,
    exchange: Exchange,
    thinking: Thinking | None = None,
    *,
    handover: Handover = Handover(),  # noqa: B008 - a tuple
) -> RequestSpec:
    """What the engine is asked for the prompts of a body; ``request_id`` names it in the engine's logs."""
    return RequestSpec(
        prompts=tuple(prompts),
        sampling=params,
        thinking=thinking,
        request_id=request_id,
        priority=priority_of(body),
        trace=exchange.trace,
        preparing=exchange.preparing,
        kv_peer=handover.peer,
        kv_pending=handover.pending,
        hand_on=handover.answer is not None,
        **tenancy(exchange, body.cache_salt),
    )


class UsageCounter:
    """The tokens that a request has used so far: the numbers behind ``usage``."""

    def __init__(self, request: RequestSpec) -> None:
        self._prompt_tokens = request.prompt_tokens
        self._tokens = 0
        self._cached = 0
        self._thoughts: int | None = None
        self._drafted: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, chunk: Chunk) -> None:
        self._tokens += len(chunk.ids)
        self._cached += chunk.cached or 0
        if chunk.drafted is not None:
            self._drafted[chunk.prompt, chunk.index] = chunk.drafted

    def count_thoughts(self, tokens: int) -> None:
        """So many tokens of the answers were thoughts so far."""
        self._thoughts = tokens

    def in_chunk(self, options: StreamOptions | None) -> Usage | UnsetType | None:
        """The ``usage`` field of a chunk: absent, null, or the count so far, as the client chose."""
        if options is None or not options.include_usage:
            return UNSET
        return self.usage() if options.continuous_usage_stats else None

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            total_tokens=self._prompt_tokens + self._tokens,
            completion_tokens=self._tokens,
            prompt_tokens_details=PromptDetails(self._cached),
            completion_tokens_details=self._details(),
        )

    def _details(self) -> CompletionDetails | UnsetType:
        """Absent where there are neither thoughts nor drafts."""
        if not self._drafted:
            return UNSET if self._thoughts is None else CompletionDetails(self._thoughts)
        verified, accepted = (sum(counts) for counts in zip(*self._drafted.values(), strict=True))
        return CompletionDetails(self._thoughts or 0, accepted, verified - accepted)


@asynccontextmanager
async def run(
    request: RequestSpec, served: Served, exchange: Exchange, origin: FormOrigin = NO_FORM
) -> AsyncIterator[AsyncIterator[Chunk]]:
    """Run an admitted request, whose form comes from ``origin``. Leaving the block early aborts it."""
    await exchange.begin(request)
    try:
        async with aclosing(cast("AsyncGenerator[Chunk, None]", served.client.generate(request))) as chunks:
            if exchange.metered or request.searched:
                async with aclosing(_charged(chunks, exchange)) as charged:
                    yield charged
            else:
                yield chunks
    except BadRequest as error:
        if error.param != FIELD:
            raise
        raise await exchange.prepare(LONG, origin.rename, error, served.parsing.schemas) from None


async def _charged(chunks: AsyncIterator[Chunk], exchange: Exchange) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of answers, and charge the tokens that the engine computed as they arrive."""
    async for chunk in chunks:
        exchange.charge(chunk.computed)
        if chunk.grows:
            yield chunk


async def collect(
    request: RequestSpec,
    served: Served,
    exchange: Exchange,
    origin: FormOrigin,
    watch: Callable[[Chunk], object] | None = None,
) -> tuple[list[Answers], UsageCounter]:
    """Run an admitted request to its end: the answers to each prompt, and what it used. ``watch`` sees every chunk."""
    assert request.sampling is not None
    answers = [Answers(request.sampling) for _ in request.prompts]
    usage = UsageCounter(request)
    async with run(request, served, exchange, origin) as chunks:
        async for chunk in chunks:
            usage.add(chunk)
            exchange.count_tokens(len(chunk.ids))
            answers[chunk.prompt].add(chunk)
            if watch is not None:
                watch(chunk)
    return answers, usage


async def respond(
    exchange: Exchange,
    request: RequestSpec,
    usage: UsageCounter,
    handover: Handover,
    whole: Callable[[], ChatResponse | CompletionResponse],
) -> HTTPResponse:
    """The ``whole`` answer to a request, written beside the event loop where it is long."""

    def write() -> HTTPResponse:
        answer = whole()
        if handover.answer is not None:
            answer.kv_transfer_params = handover.answer
        return json_response(answer)

    return await exchange.prepare(_entries(request, usage), write)


def _entries(request: RequestSpec, usage: UsageCounter) -> int:
    """About how many tokens and candidates the answer to a request lists: what writing it takes is in proportion."""
    assert request.sampling is not None
    used, sampling = usage.usage(), request.sampling
    prompt = 0 if sampling.prompt_logprobs is None else _candidates(sampling.prompt_logprobs)
    answer = 1 if sampling.logprobs is None else 1 + _candidates(sampling.logprobs)
    return used.prompt_tokens * prompt + used.completion_tokens * answer


def _candidates(asked: int) -> int:
    """Those that a position shows, the token itself among them; all of a vocabulary are thousands at least."""
    return 1 + asked if asked >= 0 else SHORT
