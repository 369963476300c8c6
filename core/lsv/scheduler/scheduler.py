"""Turns requests into step plans and step results into news: ``plan`` and ``settle`` are a pair.

There is no prefill phase and no decode phase: a request has tokens and a count of computed ones that chases it. Up to
``Limits.depth`` plans may be in flight; time is an argument everywhere.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from lsv.errors import BadRequest, Overloaded
from lsv.kv.manager import KVManager
from lsv.request.media import Media
from lsv.request.request import FinishReason, Need, Request, Status
from lsv.scheduler.job import Job
from lsv.scheduler.limits import Limits
from lsv.scheduler.outcome import Counts, Outcome
from lsv.scheduler.plan import Logprobs, StepPlan, StepResult
from lsv.scheduler.planner import Planner
from lsv.scheduler.policy import Policy

__all__ = ["Counts", "Limits", "Outcome", "Scheduler"]

_MAX_ID = (1 << 31) - 1


class Scheduler:
    """Owns all requests from ``add`` until they end.

    ``longest`` is the most tokens a request can reach: ``max_model_len``, what all blocks hold and, without chunked
    prefill, what one step can take.
    """

    def __init__(self, limits: Limits, kv: KVManager, policy: Policy) -> None:
        self.limits = limits
        self.longest, self._why_longest = _longest(limits, kv)
        self._kv = kv
        self._policy = policy
        self._planner = Planner(limits, kv, policy)
        self._jobs: dict[int, Job] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._flights: deque[tuple[StepPlan, list[Job], list[Job]]] = deque()  # the jobs of rows, and of encoding
        self._added = 0
        self._steps = 0
        self._generated = 0

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._jobs)

    @property
    def in_flight(self) -> int:
        """Plans that have not settled."""
        return len(self._flights)

    @property
    def too_slow(self) -> float | None:
        """Seconds of a step of decoding rows alone, once that is known to be over ``Limits.max_itl``."""
        pace = self._planner.pace
        return None if pace is None else pace.too_slow

    @property
    def preemptions(self) -> int:
        return self._planner.preemptions

    @property
    def counts(self) -> Counts:
        planner = self._planner
        return Counts(
            running=len(planner.batch),
            waiting=len(planner.waiting),
            kv_usage=self._kv.usage,
            preemptions=planner.preemptions,
            prefix_queries=planner.prefix_queries,
            prefix_hits=planner.prefix_hits,
            prompt_tokens=planner.prompt_tokens,
            generation_tokens=self._generated,
        )

    # Requests come and go

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises ``BadRequest`` if it can never be served, ``Overloaded`` when the queue is full."""
        assert request.id not in self._jobs, f"request {request.id} is known"
        self._check(request)
        if len(self._planner.waiting) >= self.limits.max_queue:
            raise Overloaded(f"{self.limits.max_queue} requests are waiting already: try again later")
        rank = (self._policy.key(request, now), self._added)
        self._added += 1
        job = self._jobs[request.id] = Job(request, self._kv.open(request), rank, self.longest)
        self._planner.waiting.add(job)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))

    def _check(self, request: Request) -> None:
        prompt = request.prompt
        if not prompt:
            raise BadRequest("the prompt is empty: it needs at least one token", param="prompt")
        if min(prompt) < 0 or max(prompt) > _MAX_ID:
            raise BadRequest(f"token ids of a prompt must be between 0 and {_MAX_ID}", param="prompt")
        room = self.longest if request.sampling is None else self.longest - 1
        if len(prompt) > room:
            raise BadRequest(
                f"the prompt has {len(prompt)} tokens, but at most {room} fit ({self._why_longest}): shorten it",
                param="prompt",
            )
        self._check_media(request)

    def _check_media(self, request: Request) -> None:
        self._check_item([media for media in request.media if media.cross])
        counts = [media.count for media in request.media]
        most = self.limits.encoder_tokens
        together = max(counts, default=0) if self.limits.chunked_prefill else sum(counts)
        if together > most:
            raise BadRequest(
                f"the media of the prompt need {together} tokens at a time, and the encoder keeps {most}: "
                "send smaller ones, or raise encoder_cache_tokens",
                param="messages",
            )

    def _check_item(self, items: Sequence[Media]) -> None:
        """A model with cross layers attends to one item, no other to any."""
        cross_len = self._kv.cross_len
        if len(items) != (cross_len is not None):
            wanted = "no item of media" if cross_len is None else "exactly one item of media"
            raise BadRequest(f"the model attends to {wanted} beside its prompt, and got {len(items)}", param="messages")
        if cross_len is not None and items[0].count > cross_len:
            raise BadRequest(
                f"the item has {items[0].count} embeddings, and the model attends to at most {cross_len}",
                param="messages",
            )

    def satisfy(self, id: int, need: Need) -> None:
        """What a waiting request needed is there."""
        self._planner.waiting.satisfy(id, need)

    def abort(self, ids: Iterable[int], now: float) -> tuple[Outcome, ...]:
        """End requests that nobody wants any more, whatever they are doing; ids that are not known are passed over."""
        known = [self._jobs[id] for id in ids if id in self._jobs]
        outcomes = tuple(self._end(Outcome(job.request, finish=FinishReason.ABORT), job) for job in known)
        self._planner.batch.release_blocks()
        return outcomes

    def finish(self, id: int, keep: int, reason: FinishReason, now: float) -> Outcome | None:
        """End a request after ``keep`` output tokens, as its client found out; None if it has ended already."""
        job = self._jobs.get(id)
        if job is None:
            return None
        del job.request.output[keep:]
        outcome = self._end(Outcome(job.request, finish=reason), job)
        self._planner.batch.release_blocks()
        return outcome

    def expire(self, now: float) -> tuple[Outcome, ...]:
        """Abort the requests whose deadline has come."""
        late: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            late.append(heapq.heappop(self._deadlines)[1])
        return self.abort(late, now)

    def fail_all(self, message: str, now: float) -> tuple[Outcome, ...]:
        """The workers are gone: every request ends with ``message``, and nothing is in flight or cached any more."""
        batch = self._planner.batch
        self._flights.clear()
        for job in batch:
            job.in_flight = 0
        failed = tuple(
            self._end(Outcome(job.request, finish=FinishReason.ERROR, error=message), job)
            for job in tuple(self._jobs.values())
        )
        for job in tuple(batch):
            batch.retire(job)
        batch.release_blocks()
        batch.slots.take_ended()
        self._planner.encoder.clear()
        self._kv.reset_prefix_cache()
        return failed

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; requests under way go on."""
        self._kv.reset_prefix_cache()

    def _end(self, outcome: Outcome, job: Job) -> Outcome:
        """The request has ended; its blocks follow once its rows in flight have settled."""
        request = job.request
        del self._jobs[request.id]
        job.ended = True
        request.status = Status.FINISHED
        if job in self._planner.waiting:
            self._planner.waiting.remove(job)
        else:
            self._planner.batch.retire(job)
            self._planner.encoder.unref(job)
        return outcome

    # Steps

    def plan(self, now: float) -> StepPlan | None:
        """The next step, in flight from now on; None when nothing can be planned until something settles or arrives."""
        if len(self._flights) >= self.limits.depth:
            return None
        built = self._planner.build(now)
        if built.empty:
            return None
        plan = built.finish(self._steps, self._planner.batch.slots.take_ended())
        self._steps += 1
        self._flights.append((plan, built.jobs, built.encoding))
        return plan

    def settle(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Outcome, ...]:
        """Take in the result of the oldest plan in flight."""
        expected, jobs, encoding = self._flights.popleft()
        assert plan.step == expected.step == result.step, "plans settle in order"
        if self._planner.pace is not None:
            self._planner.pace.learn(plan.rows, result.seconds)
        outcomes: list[Outcome] = []
        odd = {*result.failed, *result.vectors, *result.prompt_logprobs}
        for job in encoding:
            job.in_flight -= 1
        columns = zip(jobs, plan.rows.start, result.kept, result.tokens, strict=True)
        for row, (job, start, kept, tokens) in enumerate(columns):
            job.in_flight -= 1
            if not job.ended:
                if row in odd:
                    outcome = self._settle_odd(job, row, start, kept, result, now)
                else:
                    outcome = self._settle_row(job, start + kept, tokens, result.logprobs.get(row), None, now)
                if outcome is not None:
                    outcomes.append(outcome)
            if not job.in_flight and not job.active:
                self._planner.dismiss(job)
        for job in encoding:
            if not job.in_flight and not job.active:
                self._planner.dismiss(job)
        self._planner.batch.release_blocks()
        return tuple(outcomes)

    def _settle_odd(self, job: Job, row: int, start: int, kept: int, result: StepResult, now: float) -> Outcome | None:
        """A row that failed, gave a vector or scored a prompt."""
        request = job.request
        if row in result.failed:
            return self._end(Outcome(request, finish=FinishReason.ERROR, error=result.failed[row]), job)
        tokens, scores = result.tokens[row], _new_scores(job, start, result.prompt_logprobs.get(row))
        outcome = self._settle_row(job, start + kept, tokens, result.logprobs.get(row), scores, now)
        vector = result.vectors.get(row)
        if vector is None:
            return outcome
        request.first_token = now
        return self._end(Outcome(request, vector=vector, finish=FinishReason.STOP), job)

    def _settle_row(
        self, job: Job, computed: int, tokens: tuple[int, ...], logprobs: Logprobs | None, scores: Logprobs | None,
        now: float,
    ) -> Outcome | None:  # fmt: skip
        request = job.request
        request.computed = computed
        if computed >= job.next_kv_check:
            job.next_kv_check = self._kv.settle(job.table, computed)
        if not tokens:
            assert computed < job.known or request.sampling is None, "a row was not sampled"
            return Outcome(request, prompt_logprobs=scores) if scores is not None else None
        if request.first_token is None:
            request.first_token = now
        taken, finish = job.accept(tokens)
        self._generated += taken
        if finish is None:
            return Outcome(request, tokens, logprobs, scores)
        tokens = tokens[:taken]
        stop = job.user_stop(tokens[-1]) if finish is FinishReason.STOP else None
        logprobs = logprobs and _positions(logprobs, slice(taken))
        return self._end(Outcome(request, tokens, logprobs, scores, finish=finish, stop=stop), job)

    def check(self) -> None:
        """Assert that blocks, slots and queues add up; for tests."""
        batch = self._planner.batch
        residents = list(batch)
        self._kv.check([job.table for job in residents])
        slots = [job.slot for job in residents]
        assert len(set(slots)) == len(slots), "two requests share a slot"
        assert len(slots) + batch.slots.free == self.limits.max_num_seqs, "slots are lost"
        assert len(batch) + len(self._planner.waiting) == len(self._jobs), "a request is nowhere, or twice"
        rows = [job for _, jobs, encoding in self._flights for job in (*jobs, *encoding)]
        assert all(job.in_flight == rows.count(job) for job in residents), "rows in flight are miscounted"


def _longest(limits: Limits, kv: KVManager) -> tuple[int, str]:
    """The most tokens of one request, and what bounds it."""
    held = kv.longest(limits.tokens_in_flight)
    bounds = [
        (limits.max_model_len, f"max_model_len={limits.max_model_len}"),
        (held, f"the KV cache has {kv.num_blocks} blocks of {kv.block_size} tokens"),
    ]
    if not limits.chunked_prefill:
        tokens = limits.max_num_batched_tokens
        bounds.append((tokens, f"max_num_batched_tokens={tokens} without chunked prefill"))
    return min(bounds, key=lambda bound: bound[0])


def _new_scores(job: Job, start: int, scores: Logprobs | None) -> Logprobs | None:
    """The prompt log probabilities behind those delivered before a preemption; ``scores`` begin at ``start + 1``."""
    if scores is None:
        return None
    known = job.scored - start
    job.scored = max(job.scored, start + len(scores.ids))
    return _positions(scores, slice(known, None)) if known > 0 else scores


def _positions(logprobs: Logprobs, span: slice) -> Logprobs:
    return Logprobs(logprobs.ids[span], logprobs.values[span], logprobs.ranks[span])
