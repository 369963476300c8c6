"""Running a request's prompts on the engine, and gathering what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import cast

import msgspec
from msgspec import UNSET, UnsetType

from lsv.request.outputs import Chunk, PositionLogprobs
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.prompts import EncodedPrompt
from lsv_api.records.requests import GenerationRequest, SampledRequest, StreamOptions
from lsv_api.records.responses import PromptDetails, Usage


class Job(msgspec.Struct, frozen=True):
    """One prompt to run; ``request_id`` names it to the engine and in its logs."""

    request_id: str
    prompt: EncodedPrompt
    params: SamplingParams


class Answer(msgspec.Struct):
    """One candidate answer as far as it has come; ``prompt`` and ``index`` say whose it is."""

    prompt: int
    index: int
    text: list[str] = []
    tokens: int = 0
    logprobs: list[PositionLogprobs] = []
    finish: FinishReason | None = None
    stop: int | str | None = None

    def add(self, chunk: Chunk) -> None:
        self.text.append(chunk.text)
        self.tokens += len(chunk.ids)
        self.logprobs.extend(chunk.logprobs or ())
        if chunk.finish is not None:
            self.finish, self.stop = chunk.finish, chunk.stop

    @property
    def mean_logprob(self) -> float:
        """What candidates are ranked by: the chosen tokens' mean log probability."""
        return sum(position[0].logprob for position in self.logprobs) / max(1, len(self.logprobs))


class Tally:
    """What a request has used so far: the numbers behind ``usage``."""

    def __init__(self, prompts: Sequence[EncodedPrompt]) -> None:
        self._prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
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


class Collected(msgspec.Struct, frozen=True):
    """All answers of a request, complete, per prompt; and the prompts' log probabilities."""

    answers: list[list[Answer]]
    prompt_logprobs: list[tuple[PositionLogprobs | None, ...] | None]
    usage: Usage


@asynccontextmanager
async def running(
    jobs: Sequence[Job], body: GenerationRequest, served: Served, exchange: Exchange
) -> AsyncIterator[AsyncIterator[tuple[int, Chunk]]]:
    """Run all jobs at once; gives (index of the job, chunk) as they come. Leaving early aborts the rest."""
    exchange.prompt_tokens = sum(len(job.prompt.ids) for job in jobs)
    streams = [begin(job, body, served, exchange) for job in jobs]
    async with aclosing(_one(streams[0]) if len(streams) == 1 else _merged(streams)) as chunks:
        yield chunks


def begin(job: Job, body: SampledRequest, served: Served, exchange: Exchange) -> AsyncGenerator[Chunk, None]:
    """Run one job; closing it early aborts it."""
    chunks = served.client.generate(
        job.prompt.ids,
        job.params,
        request_id=job.request_id,
        media=job.prompt.media,
        positions=job.prompt.positions,
        priority=body.priority or 0,
        salt=(body.cache_salt or "").encode(),
        trace=exchange.trace,
    )
    return cast("AsyncGenerator[Chunk, None]", chunks)


async def collect(jobs: Sequence[Job], body: GenerationRequest, served: Served, exchange: Exchange) -> Collected:
    """Run all jobs to their end."""
    answers = [[Answer(job, index) for index in range(item.params.candidates)] for job, item in enumerate(jobs)]
    prompt_logprobs: list[tuple[PositionLogprobs | None, ...] | None] = [None] * len(jobs)
    tally = Tally([job.prompt for job in jobs])
    async with running(jobs, body, served, exchange) as chunks:
        async for job, chunk in chunks:
            tally.add(chunk)
            exchange.count_tokens(len(chunk.ids))
            answers[job][chunk.index].add(chunk)
            if chunk.prompt_logprobs is not None:
                prompt_logprobs[job] = chunk.prompt_logprobs
    best = [_best(found, item.params.n) for found, item in zip(answers, jobs, strict=True)]
    return Collected(best, prompt_logprobs, tally.usage())


def numbered(collected: Collected) -> Iterator[tuple[int, Answer]]:
    """All answers with the index of their choice: prompt by prompt, candidate by candidate."""
    return enumerate(answer for answers in collected.answers for answer in answers)


def _best(answers: list[Answer], n: int) -> list[Answer]:
    if len(answers) == n:
        return answers
    return sorted(answers, key=lambda answer: answer.mean_logprob, reverse=True)[:n]


async def _one(stream: AsyncGenerator[Chunk, None]) -> AsyncGenerator[tuple[int, Chunk], None]:
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
