"""Running a request's prompts on the engine, and gathering their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import cast

from msgspec import UNSET, UnsetType

from lsv.engine.answers import Answers
from lsv.request.outputs import Chunk
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.sampling import hash_salt
from lsv_api.records.requests import SampledRequest, StreamOptions
from lsv_api.records.responses import PromptDetails, Usage


def make_request(
    body: SampledRequest, prompt: Prompt, params: SamplingParams, request_id: str, exchange: Exchange
) -> RequestSpec:
    """What the engine is asked for one prompt of a body; ``request_id`` names it in the engine's logs."""
    return RequestSpec(
        prompts=(prompt,),
        sampling=params,
        request_id=request_id,
        priority=body.priority or 0,
        salt=hash_salt(body.cache_salt),
        trace=exchange.trace,
    )


class UsageCounter:
    """The tokens that a body's requests have used so far: the numbers behind ``usage``."""

    def __init__(self, requests: Sequence[RequestSpec]) -> None:
        self._prompt_tokens = sum(len(request.prompt.ids) for request in requests)
        self._tokens = 0
        self._cached = 0

    def add(self, chunk: Chunk) -> None:
        self._tokens += len(chunk.ids)
        self._cached += chunk.cached or 0

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
        )


def start(request: RequestSpec, served: Served) -> AsyncGenerator[Chunk, None]:
    """Run one admitted request; closing it early aborts it."""
    return cast("AsyncGenerator[Chunk, None]", served.client.generate(request))


@asynccontextmanager
async def run_one(request: RequestSpec, served: Served, exchange: Exchange) -> AsyncIterator[AsyncIterator[Chunk]]:
    """Run one admitted request; leaving early aborts it."""
    exchange.prompt_tokens = len(request.prompt.ids)
    async with aclosing(start(request, served)) as chunks:
        yield chunks


@asynccontextmanager
async def run_all(
    requests: Sequence[RequestSpec], served: Served, exchange: Exchange
) -> AsyncIterator[AsyncIterator[tuple[int, Chunk]]]:
    """Run admitted requests; gives (index of the request, chunk) as they come. Leaving early aborts the rest."""
    exchange.prompt_tokens = sum(len(request.prompt.ids) for request in requests)
    streams = [start(request, served) for request in requests]
    async with aclosing(_single(streams[0]) if len(streams) == 1 else _merged(streams)) as chunks:
        yield chunks


async def collect(
    requests: Sequence[RequestSpec], served: Served, exchange: Exchange
) -> tuple[list[Answers], UsageCounter]:
    """Run admitted requests to their end: their answers, and what they used."""
    answers = [Answers(cast("SamplingParams", request.sampling)) for request in requests]
    usage = UsageCounter(requests)
    async with run_all(requests, served, exchange) as chunks:
        async for index, chunk in chunks:
            usage.add(chunk)
            exchange.count_tokens(len(chunk.ids))
            answers[index].add(chunk)
    return answers, usage


async def _single(stream: AsyncGenerator[Chunk, None]) -> AsyncGenerator[tuple[int, Chunk], None]:
    async with aclosing(stream):
        async for chunk in stream:
            yield 0, chunk


async def _merged(streams: Sequence[AsyncGenerator[Chunk, None]]) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Chunks of all streams in the order they arrive; the first failure ends them all."""
    queue: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue(maxsize=2 * len(streams))

    async def forward(index: int, stream: AsyncGenerator[Chunk, None]) -> None:
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    await queue.put((index, chunk))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(forward(index, stream)) for index, stream in enumerate(streams)]
    still_open = len(tasks)
    try:
        while still_open:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                still_open -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
