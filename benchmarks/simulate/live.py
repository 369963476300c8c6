"""The same load on real engines: the same conversations at the same moments, and the same figures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable

from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.socket_client import SocketClient
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_testing.fakes.tokens import VOCABULARY
from simulate.clock import Action
from simulate.engine import Job
from simulate.figures import Figures

Client = ReplicaSet | SocketClient


class LiveClock:
    """Like ``simulate.clock.Clock``, but time passes by itself."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    @property
    def now(self) -> float:
        return self._loop.time() - self._began

    def after(self, seconds: float, action: Action) -> None:
        self._loop.call_later(seconds, action)


class LiveFleet:
    """Sends requests to engines, and notes when tokens come."""

    def __init__(self, client: ReplicaSet) -> None:
        self.figures = Figures()
        self._client = client
        self._said: dict[int, list[int]] = {}
        """All token ids of each user's conversation."""
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, job: Job) -> None:
        task = asyncio.create_task(self._answer(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, job: Job) -> None:
        said = self._said.setdefault(job.user, [])
        said += random_ids(f"{job.user} {len(said)}", job.prompt_tokens - len(said))
        self.figures.prompt_tokens += job.prompt_tokens
        arrived = last = time.perf_counter()
        answer: list[int] = []
        async for ids in stream(self._client, tuple(said), job.answer):
            now = time.perf_counter()
            if not answer:
                self.figures.ttft.add(now - arrived)
            else:
                self.figures.itl.add((now - last) / len(ids), len(ids))
            last = now
            answer += ids
            self.figures.tokens += len(ids)
        said += answer
        self.figures.done += 1
        self.figures.e2e.add(last - arrived)
        job.ended(False)


async def stream(client: Client, prompt: tuple[int, ...], tokens: int) -> AsyncIterator[tuple[int, ...]]:
    """An answer of just so many tokens, as it comes."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    request = RequestSpec(prompts=(Prompt(prompt),), sampling=params, request_id="simulate")
    async for chunk in client.generate(request):
        if chunk.ids:
            yield tuple(chunk.ids)


def random_ids(seed: str, count: int) -> list[int]:
    draw: Callable[[int, int], int] = random.Random(seed).randrange
    return [draw(5, VOCABULARY) for _ in range(count)]
