"""One engine: which tokens its steps have, and when they end."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count

from lsv.engine.replicas.prefixes import Chain, HeldBlocks
from simulate.clock import Clock
from simulate.figures import Figures
from simulate.steps import StepTimes


@dataclass(slots=True, eq=False)
class Job:
    """A request with one answer; lengths in tokens."""

    user: int
    prompt_tokens: int
    answer: int
    chain: Chain
    """The names of the prompt's full blocks, and of those of prompt and answer."""
    whole: Chain
    ended: Callable[[bool], None]
    """Called once, with whether it was lost."""
    begun: Callable[[], None] = lambda: None
    """Called when its first token is there."""
    arrived: float = math.nan
    computed: int = 0
    """Tokens of the prompt that are computed or were cached."""
    width: int = 1

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.answer


class Record:
    """Where figures of several engines are added up; they may be exchanged at any time."""

    def __init__(self) -> None:
        self.figures = Figures()


class SimulatedEngine:
    """Also what a server sees of an engine: ``lsv.engine.replicas.replica.Replica`` takes it for a client.

    With ``bulk``, steps that only decode are one event until something else can happen; it is the same without.
    """

    adapters = ()

    def __init__(self, clock: Clock, times: StepTimes, record: Record, *, bulk: bool = True) -> None:
        self._clock, self._times, self._record, self._bulk = clock, times, record, bulk
        self.config = self.fit = times
        self.status = self.stats = self
        self.state = "ready"
        self._order = count()
        self._version = 0
        self._clear()

    @property
    def running(self) -> int:
        return len(self._prompts) + len(self._answers)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, job: Job) -> None:
        """Raises ``ValueError`` for one that the cache could never hold."""
        if job.length > self._times.kv_tokens:
            raise ValueError(f"a request of {job.length} tokens in a cache of {self._times.kv_tokens}: give it more")
        job.arrived = self._clock.now
        self._queue.append(job)
        if self._steps == 0:
            self._begin()
        elif self._steps > 1:
            self._cut_short()

    def die(self) -> list[Job]:
        """The requests that are lost with it; from now on it has none, and an empty cache."""
        lost = [*self._queue, *self._prompts, *(job for _, _, job in self._answers)]
        self._version += 1
        self._clear()
        return lost

    def _clear(self) -> None:
        self._queue: deque[Job] = deque()
        self._prompts: deque[Job] = deque()
        self._answers: list[tuple[int, int, Job]] = []
        """Those that decode, by the step that ends them."""
        self._chunks: list[tuple[Job, int]] = []
        self._cache = HeldBlocks()
        self._done = self._steps = self._context = self._reserved = 0
        """Steps that have ended, and those that are under way; tokens that decoding attends to; tokens of the cache
        that requests need in the end."""

    # Steps

    def _begin(self) -> None:
        """Plan the next steps; none where there is nothing to do."""
        self._admit()
        self._chunks = self._cut_prompts()
        if not self._chunks and not self._answers:
            self._steps = 0
            return
        self._steps = self._answers[0][0] - self._done if self._bulk and not self._chunks else 1
        self._base = self._seconds()
        self._began = self._clock.now
        self._schedule()

    def _admit(self) -> None:
        times = self._times
        while self._queue and self.running < times.max_num_seqs:
            job = self._queue[0]
            if self._reserved + job.length > times.kv_tokens:
                return
            self._queue.popleft()
            self._reserved += job.length
            job.computed = min(self._cache.count(job.chain) * times.block_size, job.prompt_tokens - 1)
            self._record.figures.prompt_tokens += job.prompt_tokens
            self._record.figures.cached_tokens += job.computed
            self._prompts.append(job)

    def _cut_prompts(self) -> list[tuple[Job, int]]:
        """What is computed of prompts beside the answers, first come first served."""
        left, chunks = self._times.max_num_batched_tokens - len(self._answers), []
        for job in self._prompts:
            if left <= 0:
                break
            chunks.append((job, min(left, job.prompt_tokens - job.computed)))
            left -= chunks[-1][1]
        return chunks

    def _seconds(self) -> float:
        """Of the next step."""
        times = self._times
        tokens = sum(chunk for _, chunk in self._chunks)
        pairs = sum(chunk * job.computed for job, chunk in self._chunks)
        return times.seconds(len(self._answers), tokens) + times.context * self._context + times.pair * pairs

    def _elapsed(self, steps: int) -> float:
        """Seconds of so many: with each, what is attended to grows by a token a row."""
        growth = self._times.context * len(self._answers)
        return steps * self._base + growth * steps * (steps - 1) / 2

    def _schedule(self) -> None:
        self._version += 1
        self._clock.at(self._began + self._elapsed(self._steps), partial(self._finish, self._version))

    def _cut_short(self) -> None:
        """Something has come: plan anew after the step that is under way."""
        steps = 1 + bisect_left(range(1, self._steps), self._clock.now - self._began, key=self._elapsed)
        if steps < self._steps:
            self._steps = steps
            self._schedule()

    def _finish(self, version: int) -> None:
        """The planned steps have ended."""
        if version != self._version:
            return
        figures, rows, seconds = self._record.figures, len(self._answers), self._elapsed(self._steps)
        figures.busy_seconds += seconds
        figures.tokens += rows * self._steps
        if rows:
            figures.itl.add(seconds / self._steps, rows * self._steps)
        self._done += self._steps
        self._context += rows * self._steps
        for job, chunk in self._chunks:
            job.computed += chunk
            if job.computed == job.prompt_tokens:
                self._start_answer(job)
        while self._answers and self._answers[0][0] <= self._done:
            job = heappop(self._answers)[2]
            self._context -= job.length
            self._end(job)
        self._begin()

    def _start_answer(self, job: Job) -> None:
        """Its first token is there."""
        self._prompts.remove(job)
        figures = self._record.figures
        figures.tokens += 1
        figures.ttft.add(self._clock.now - job.arrived + self._times.latency)
        self._keep(job.chain)
        job.begun()
        if job.answer == 1:
            self._end(job)
            return
        self._context += job.prompt_tokens + 1
        heappush(self._answers, (self._done + job.answer - 1, next(self._order), job))

    def _end(self, job: Job) -> None:
        self._reserved -= job.length
        self._keep(job.whole)
        figures = self._record.figures
        figures.done += 1
        figures.e2e.add(self._clock.now - job.arrived + self._times.latency)
        # The client goes on once it knows.
        self._clock.after(self._times.latency, partial(job.ended, False))

    def _keep(self, chain: Chain) -> None:
        self._cache.add((chain,), self._times.kv_tokens // self._times.block_size)
