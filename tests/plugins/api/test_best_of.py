"""The best of several candidates is the same one offline and over HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lsv.request.outputs import RequestOutput
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.text.prompts import PromptReader
from lsv_offline.inline_client import InlineClient, StepOutput
from lsv_offline.llm_engine import LLMEngine
from lsv_testing.fakes.client import FakeClient

CANDIDATES = {0: "long and likely", 1: "no", 2: "no way"}
"""The first one's tokens are the likeliest, and so many that their sum is below that of the second one's."""


class SteppedClient:
    """The chunks of a fake client, given out by steps."""

    def __init__(self, inner: FakeClient) -> None:
        self._inner = inner
        self._chunks: list[StepOutput] = []

    def add(self, request: RequestSpec, arrival: float | None = None) -> RequestSpec:
        async def read() -> list[StepOutput]:
            return [StepOutput(request.request_id, chunk) async for chunk in self._inner.generate(request)]

        self._chunks = asyncio.run(read())
        return self._inner.admission.admit(request)

    def step(self) -> list[StepOutput]:
        return [self._chunks.pop(0)]


def offline(params: SamplingParams) -> list[str]:
    inner = FakeClient()
    inner.answers = CANDIDATES
    prompts = SimpleNamespace(read=lambda prompt: Prompt(ids=tuple(prompt)))
    engine = LLMEngine(cast("InlineClient", SteppedClient(inner)), cast("PromptReader", prompts))
    engine.add_request("r", [72, 105], params)
    while not (found := engine.step(finished_only=True)):
        pass
    (output,) = found
    assert isinstance(output, RequestOutput)
    assert all(answer.logprobs is None for answer in output.outputs)
    return [answer.text for answer in output.outputs]


async def online(site: Any, **body: Any) -> list[str]:
    site.engine.answers = CANDIDATES
    reply = (await site.complete(prompt=[72, 105], **body)).json()
    return [choice["text"] for choice in reply["choices"]]


@pytest.mark.row("F-038", "F-133")
async def test_candidates_are_ranked_by_their_mean_everywhere(site: Any) -> None:
    winners = await asyncio.to_thread(offline, SamplingParams(n=2, best_of=3))
    assert winners == await online(site, n=2, best_of=3) == ["long and likely", "no"]
