"""Load on a running server: requests arrive as planned, and each one's tokens are timed as they come in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

import httpx2
import msgspec

from lsv_base.errors import BadRequest, LsvError
from lsv_bench.datasets import Conversation, Sample
from lsv_bench.openai_api import headers, refusal

_TIMEOUT = httpx2.Timeout(3600.0, connect=60.0)
_PATHS = {"completions": "completions", "chat": "chat/completions"}

Endpoint = Literal["completions", "chat"]
ENDPOINTS: dict[str, Endpoint] = {
    "completions": "completions",
    "chat": "chat",
    "openai": "completions",
    "openai-chat": "chat",
    "vllm": "completions",
}
"""Endpoints by the names they go by."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how: ``url`` ends in ``/v1``; ``extra_body`` is laid over each request."""

    url: str
    model: str
    endpoint: Endpoint = "completions"
    api_key: str | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    extra_body: Mapping[str, Any] = {}

    def body(self, sample: Sample) -> dict[str, Any]:
        """The JSON of a request."""
        asked = {"messages": _messages(sample)} if self.endpoint == "chat" else {"prompt": sample.prompt}
        return {
            "model": self.model,
            **asked,
            "max_tokens": sample.output_len,
            "temperature": self.temperature,
            **({"ignore_eos": True} if self.ignore_eos else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra_body,
        }


class Outcome(msgspec.Struct, kw_only=True):
    """How one request went. Times in seconds from sending it; ``gaps`` lie between chunks of the stream.

    Token counts are the server's; without them ``output_tokens`` counts the chunks and ``input_tokens`` is 0.
    """

    ttft: float = 0.0
    gaps: list[float] = []
    e2el: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None when there is none."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class LoadRun(msgspec.Struct, frozen=True):
    """All outcomes in the order of the samples, the seconds it took, and the most requests open at once."""

    outcomes: Sequence[Outcome]
    seconds: float
    peak: int


async def run_load(
    target: Target, samples: Sequence[Sample], times: Sequence[float], *, concurrency: int, done: Callable[[], None]
) -> LoadRun:
    """Send each sample at its time (seconds from now), at most ``concurrency`` at once; ``done`` is called after each.

    Requests that fail are outcomes with an error; nothing is raised for them.
    """
    gate, opened, peak = asyncio.Semaphore(concurrency), 0, 0
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(headers=headers(target.api_key), timeout=_TIMEOUT, limits=limits) as http:

        async def send(sample: Sample) -> Outcome:
            nonlocal opened, peak
            async with gate:
                opened += 1
                peak = max(peak, opened)
                outcome = await _measure(http, target, sample)
                opened -= 1
            done()
            return outcome

        began, tasks = time.perf_counter(), []
        for sample, at in zip(samples, times, strict=True):
            wait = began + at - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(send(sample)))
        outcomes = await asyncio.gather(*tasks)
        return LoadRun(outcomes, time.perf_counter() - began, peak)


async def _measure(http: httpx2.AsyncClient, target: Target, sample: Sample) -> Outcome:
    outcome = Outcome()
    url, body = f"{target.url}/{_PATHS[target.endpoint]}", msgspec.json.encode(target.body(sample))
    began = last = time.perf_counter()
    try:
        async with http.stream("POST", url, content=body, headers={"Content-Type": "application/json"}) as response:
            if response.status_code != 200:
                raise refusal(response.status_code, await response.aread())
            async for event in _events(response.aiter_bytes()):
                now = time.perf_counter()
                if event.usage is not None:
                    _count(outcome, event.usage)
                if not event.has_token:
                    continue
                if outcome.ttft:
                    outcome.gaps.append(now - last)
                else:
                    outcome.ttft = now - began
                last = now
    except (httpx2.HTTPError, LsvError, msgspec.DecodeError) as cause:
        outcome.error = str(cause) or type(cause).__name__
    outcome.e2el = time.perf_counter() - began
    if outcome.ttft and not outcome.output_tokens:
        outcome.output_tokens = len(outcome.gaps) + 1
    if not outcome.output_tokens and outcome.error is None:
        outcome.error = "the answer held no token"
    outcome.ttft = outcome.ttft or outcome.e2el
    return outcome


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct, frozen=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    """What is read of an event of the stream; everything else in it is skipped."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    @property
    def has_token(self) -> bool:
        """Whether it brings a token, which may have no text of its own; a role or an end alone brings none."""
        return any(
            bool(choice.text or choice.delta.content or choice.delta.reasoning_content)
            or (choice.finish_reason is None and choice.delta.role is None)
            for choice in self.choices
        )


_DECODER = msgspec.json.Decoder(_Event)


async def _events(stream: AsyncIterator[bytes]) -> AsyncIterator[_Event]:
    """The events of a server-sent event stream; raises ``BadRequest`` for one that reports an error."""
    rest = b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = _DECODER.decode(line[5:])
            if event.error is not None:
                message = event.error.get("message") if isinstance(event.error, dict) else None
                raise BadRequest(str(message or event.error))
            yield event


def _count(outcome: Outcome, usage: _Usage) -> None:
    outcome.input_tokens, outcome.output_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        outcome.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0


def _messages(sample: Sample) -> Sequence[Mapping[str, Any]]:
    if isinstance(sample.prompt, Conversation):
        return sample.prompt.messages
    return ({"role": "user", "content": sample.prompt},)
