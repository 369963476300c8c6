"""Load on a running server: requests arrive by a Poisson process or as fast as the concurrency allows."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from lsv.bench.datasets import Sample
from lsv.bench.report import Figures, spread
from lsv.cli.openai_api import async_events, headers, refusal
from lsv.errors import LsvError, Unavailable


@dataclass
class Timings:
    """What was seen of all requests, in seconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """How to press a server. ``rate`` in requests per second may be infinite; ``concurrency`` bounds open requests."""

    url: str
    model: str
    rate: float
    concurrency: int
    ignore_eos: bool
    api_key: str | None
    seed: int


async def press(load: Load, samples: Sequence[Sample], done: Callable[[], None]) -> Figures:
    """Send all samples; ``done`` is called after each. Raises ``LsvError`` if every request failed."""
    timings, gate, rng = Timings(), asyncio.Semaphore(load.concurrency), random.Random(load.seed)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(headers=headers(load.api_key), timeout=None, limits=limits) as http:

        async def one(sample: Sample) -> None:
            async with gate:
                await _measure(http, load, sample, timings)
                done()

        began, tasks = time.perf_counter(), []
        for sample in samples:
            tasks.append(asyncio.create_task(one(sample)))
            if math.isfinite(load.rate):
                await asyncio.sleep(rng.expovariate(load.rate))
        await asyncio.gather(*tasks)
        seconds = time.perf_counter() - began
    if not timings.e2e:
        raise Unavailable(f"no request succeeded; the first error was: {timings.errors[0]}")
    return summarise(timings, seconds)


async def _measure(http: httpx2.AsyncClient, load: Load, sample: Sample, timings: Timings) -> None:
    body: dict[str, Any] = {
        "model": load.model,
        "prompt": sample.prompt,
        "max_tokens": sample.output_len,
        "temperature": 0,
        "ignore_eos": load.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = last = time.perf_counter()
    first: float | None = None
    gaps: list[float] = []
    try:
        async with http.stream("POST", f"{load.url}/completions", json=body) as response:
            if response.status_code != 200:
                raise refusal(response.status_code, await response.aread())
            async for event in async_events(response.aiter_lines()):
                if event.get("usage"):
                    timings.input_tokens += event["usage"]["prompt_tokens"]
                    timings.output_tokens += event["usage"]["completion_tokens"]
                if not event.get("choices"):
                    continue
                now = time.perf_counter()
                if first is None:
                    first = now - began
                else:
                    gaps.append(now - last)
                last = now
    except (httpx2.HTTPError, LsvError) as cause:
        timings.errors.append(str(cause))
        return
    timings.ttft.append(first if first is not None else last - began)
    timings.itl.extend(gaps)
    timings.e2e.append(time.perf_counter() - began)


def summarise(timings: Timings, seconds: float) -> Figures:
    """All figures of a run that took ``seconds``."""
    return {
        "requests": len(timings.e2e),
        "errors": len(timings.errors),
        "seconds": seconds,
        "requests_per_s": len(timings.e2e) / seconds,
        "input_tokens": timings.input_tokens,
        "output_tokens": timings.output_tokens,
        "output_tokens_per_s": timings.output_tokens / seconds,
        "total_tokens_per_s": (timings.input_tokens + timings.output_tokens) / seconds,
        **spread("ttft", timings.ttft),
        **spread("itl", timings.itl),
        **spread("e2e", timings.e2e),
    }
