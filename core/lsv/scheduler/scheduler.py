"""Turns requests into step plans and step results into news: ``plan`` and ``settle`` are a pair.

A request has tokens, and a count of computed ones that chases it. A step holds chunks of prompts and decoding rows
side by side, unless the platform can't mix them; the scheduler has no phase for either. Up to ``Limits.depth`` plans
may be in flight. Where time matters, it is an argument: the scheduler has no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from lsv.kv.manager import KVManager
from lsv.request.adapter import Adapter
from lsv.request.group import RequestGroup
from lsv.request.request import FinishReason, Need, Request, Status
from lsv.request.spec import RequestSpec
from lsv.scheduler.adapters import requests_of
from lsv.scheduler.deadlines import Deadlines
from lsv.scheduler.drafts.speculation import LookAhead, Speculation
from lsv.scheduler.encoder_cache import EncoderCache, needs_of
from lsv.scheduler.job import Group, Job
from lsv.scheduler.limits import Limits
from lsv.scheduler.mutual import cache_salt
from lsv.scheduler.outcome import AdapterRequests, Counts, OffloadCounts, Outcome, SpeculationCounts, Totals
from lsv.scheduler.pace import Pace
from lsv.scheduler.plan import Logprobs, StepPlan, StepResult, cut_logprobs
from lsv.scheduler.plan_builder import GuidedRow
from lsv.scheduler.planner import Planner
from lsv.scheduler.policy import Policy
from lsv.scheduler.requirements import Requirements
from lsv.scheduler.running import RunningBatch
from lsv.scheduler.tenant import Tenants
from lsv.scheduler.waiting import WaitingQueue
from lsv_base.errors import Overloaded


class Scheduler:
    """Owns all requests from ``add`` until they end: the waiting queue, the running batch and the encoder cache."""

    def __init__(self, limits: Limits, kv: KVManager, policy: Policy) -> None:
        self.limits = limits
        self._kv = kv
        self._policy = policy
        self._requirements = Requirements(limits, kv)
        self._totals = Totals()
        self._tenants = Tenants()
        self._waiting = WaitingQueue(self._open_job)
        self._encoder = EncoderCache(limits.encoder_tokens, limits.encoder_parts)
        self._running = RunningBatch(limits, kv, self._encoder, self._waiting, self._totals)
        self._pace = None if limits.max_itl is None else Pace(limits.max_itl)
        self._speculation = Speculation(limits, kv.draft_states) if limits.drafts else None
        self._planner = Planner(
            limits, kv, policy,
            waiting=self._waiting, running=self._running, encoder=self._encoder, tenants=self._tenants, pace=self._pace,
            speculation=self._speculation,
        )  # fmt: skip
        self._groups: dict[int, Group] = {}
        self._jobs: dict[int, Job] = {}
        self._deadlines = Deadlines()
        # Plans that have not settled, with the jobs of their rows and those that begin or encode.
        self._in_flight: deque[tuple[StepPlan, list[Job], list[Job]]] = deque()
        self._steps = 0
        self.guided: list[GuidedRow] = []
        """The jobs of the last plan."""

    @property
    def longest(self) -> int:
        """The most tokens a request can reach, see ``Requirements``."""
        return self._requirements.longest

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished, or anything is to be copied to lower tiers."""
        return bool(self._groups) or (self._kv.tiers is not None and self._kv.tiers.pending)

    @property
    def adapters(self) -> set[Adapter]:
        """The adapters of unfinished requests."""
        asked = (group.asked.adapter for group in self._groups.values())
        return {adapter for adapter in asked if adapter is not None}

    @property
    def adapter_requests(self) -> AdapterRequests | None:
        """The adapters that requests use; None if adapters are off."""
        return requests_of(self._groups.values()) if self.limits.adapter_slots else None

    @property
    def in_flight(self) -> int:
        """Plans that have not settled."""
        return len(self._in_flight)

    @property
    def too_slow(self) -> float | None:
        """Seconds of a step of decoding rows alone, once that is known to be over ``Limits.max_itl``."""
        return None if self._pace is None else self._pace.too_slow

    @property
    def preemptions(self) -> int:
        return self._totals.preemptions

    @property
    def preempted(self) -> str:
        """The request that was preempted last, as its client named it."""
        return self._totals.preempted

    @property
    def speculation(self) -> SpeculationCounts | None:
        """Counts of drafts; None without drafts."""
        return None if self._speculation is None else self._speculation.counts

    @property
    def offload(self) -> OffloadCounts | None:
        """Counts of lower tiers; None without any."""
        tiers = self._kv.tiers
        return None if tiers is None else OffloadCounts(tiers.queries, tiers.hits, tiers.usage)

    @property
    def counts(self) -> Counts:
        totals = self._totals
        return Counts(
            running=len(self._running),
            waiting=len(self._waiting),
            deferred=self._waiting.deferred,
            kv_usage=self._kv.usage,
            preemptions=totals.preemptions,
            prefix_queries=totals.prefix_queries,
            prefix_hits=totals.prefix_hits,
            prompt_tokens=totals.prompt_tokens,
            generation_tokens=totals.generation_tokens,
        )

    # Requests come and go

    def check_request(self, spec: RequestSpec) -> None:
        """Raises ``BadRequest`` if it can never be served, ``Overloaded`` if its tenant's queue is full."""
        self._requirements.check(spec)
        if self._waiting.groups_of(spec.tenant) >= self.limits.max_queue:
            raise Overloaded(f"{self.limits.max_queue} requests are waiting already: try again later")

    def add(self, asked: RequestGroup, now: float) -> None:
        """Queue a request group. Raises what ``check_request`` raises."""
        assert asked.id not in self._groups, f"request group {asked.id} is known"
        self.check_request(asked.spec)
        tenant = self._tenants.enter(asked.spec.tenant, asked.spec.weight)
        group = self._groups[asked.id] = Group(asked, tenant, self._policy, now)
        self._waiting.add(group)
        if asked.deadline is not None:
            self._deadlines.add(asked.deadline, asked.id)

    def renew(self, asked: RequestGroup) -> None:
        """Queue the next round of a group in its old place, once the round before has ended."""
        group = self._groups[asked.id]
        group.renew(asked)
        self._waiting.add(group)

    def _open_job(self, group: Group, request: Request) -> Job:
        request.salt = cache_salt(request, self.limits.mutual)
        job = self._jobs[request.id] = Job(group, request, self._kv.open(request), self.longest)
        job.waits |= self.limits.stages > 1
        job.drafting = None if self._speculation is None else self._speculation.open(request)
        return job

    def satisfy(self, id: int, need: Need) -> None:
        """Record that a waiting group got something it needs; unknown ids are ignored."""
        self._waiting.satisfy(id, need)

    def abort(self, ids: Iterable[int]) -> tuple[Outcome, ...]:
        """Abort request groups in any state; unknown ids are ignored."""
        groups = [self._groups[id] for id in ids if id in self._groups]
        outcomes = [outcome for group in groups for outcome in self._end_group(group, FinishReason.ABORT)]
        self._running.release_blocks()
        return tuple(outcomes)

    def refuse(self, id: int, why: str) -> tuple[Outcome, ...]:
        """End a request group that can't be served (any more), in any state; unknown ids are ignored."""
        outcomes = self._end_group(self._groups[id], FinishReason.ERROR, why) if id in self._groups else ()
        self._running.release_blocks()
        return tuple(outcomes)

    def finish(self, id: int, keep: int, reason: FinishReason) -> Outcome | None:
        """End a sequence after ``keep`` output tokens, as its owner decided; None if it has ended already."""
        job = self._jobs.get(id)
        if job is None:
            return None
        del job.request.output[keep:]
        outcome = self._end(Outcome(job.request, finish=reason), job)
        self._running.release_blocks()
        return outcome

    def release(self, id: int) -> None:
        """Stop guiding a sequence, so that it may be planned ahead."""
        job = self._jobs.get(id)
        if job is not None:
            job.guided, job.waits = False, self.limits.stages > 1
            if self._speculation is not None:
                self._speculation.update_waits(job)

    def hold(self, id: int) -> None:
        """Plan no row of a guided sequence until ``resume``."""
        self._jobs[id].held = True

    def resume(self, id: int) -> None:
        """Plan rows of a held sequence again."""
        self._jobs[id].held = False
        self._waiting.unpark(self._jobs[id].group.id)

    def cut_drafts(self, id: int, look_ahead: LookAhead) -> None:
        """Drop drafts of a guided sequence that its grammar forbids."""
        job = self._jobs.get(id)
        if job is not None and self._speculation is not None:
            self._speculation.cut(job, look_ahead)

    def expire(self, now: float) -> tuple[Outcome, ...]:
        """Abort the request groups whose deadline has passed."""
        return self.abort(self._deadlines.take_late(now))

    def fail_all(self, message: str) -> tuple[Outcome, ...]:
        """End every request with ``message``, because the workers are gone. Nothing stays in flight or cached."""
        self._in_flight.clear()
        for job in self._running:
            job.in_flight = 0
        groups = tuple(self._groups.values())
        failed = [outcome for group in groups for outcome in self._end_group(group, FinishReason.ERROR, message)]
        for job in tuple(self._running):
            self._running.retire(job)
        self._running.release_blocks()
        self._running.slots.take_ended()
        self._encoder.clear()
        self._kv.reset_prefix_cache()
        return tuple(failed)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests go on."""
        self._kv.reset_prefix_cache()

    def forget_cached(self, *, host: bool) -> None:
        """Forget the contents of the worker's cache and embeddings, and with ``host`` those of host memory.

        Call this without running requests or pending saves, before the memory is released.
        """
        assert not self.has_work, "requests have not ended, or not all is saved"
        assert not self._in_flight, "steps have not settled"
        self._encoder.clear()
        self._kv.reset_prefix_cache(host=host)

    def _end_group(self, group: Group, reason: FinishReason, error: str | None = None) -> list[Outcome]:
        """End all sequences of a group, also those without a job."""
        unmade = group.drop_unmade()
        for request in unmade:
            request.status = Status.FINISHED
        self._waiting.on_ended(group, len(unmade))
        ended = [Outcome(request, finish=reason, error=error) for request in unmade]
        ended += [
            self._end(Outcome(job.request, finish=reason, error=error), job) for job in tuple(group.jobs.values())
        ]
        if group.id in self._groups:  # none of them had a job
            self._forget(group)
        return ended

    def _end(self, outcome: Outcome, job: Job) -> Outcome:
        """End a sequence. ``release_blocks`` returns its blocks once its rows in flight have settled."""
        request, group = job.request, job.group
        waiting = request.status is Status.WAITING
        del self._jobs[request.id], group.jobs[request.id]
        job.ended = True
        request.status = Status.FINISHED
        if waiting:
            self._waiting.on_ended(group, 1)
        else:
            self._running.retire(job)
            self._encoder.unref(job)
        if group.ended and not group.asked.rounds:
            self._forget(group)
        return outcome

    def _forget(self, group: Group) -> None:
        del self._groups[group.id]
        self._tenants.leave(group.tenant)
        self._deadlines.drop_ended(self._groups, len(self._groups))

    # Steps

    def plan(self, now: float, *, needed: bool = False) -> StepPlan | None:
        """The next step: running requests first, then waiting ones after a prefix look-up. May be empty if ``needed``.

        The step is in flight from now on. None if nothing can be planned until something settles or arrives.
        """
        if len(self._in_flight) >= self.limits.depth:
            return None
        built = self._planner.build(now)
        if built.empty and not needed:
            return None
        if self._encoder.failed:
            self._encoder.forget_failed(built)
        self.guided = built.guided
        plan = built.finish(self._steps, self._running.slots.take_ended())
        if self._speculation is not None:
            plan = self._speculation.ask(plan, built.jobs)
        self._steps += 1
        self._in_flight.append((plan, built.jobs, built.held))
        return plan

    def settle(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Outcome, ...]:
        """Apply the result of the oldest plan in flight."""
        expected, jobs, held = self._in_flight.popleft()
        assert plan.step == expected.step == result.step, "plans settle in order"
        if self._pace is not None:
            self._pace.learn(plan.rows, result.seconds)
        if self._speculation is not None:
            self._speculation.settle(plan, jobs, result)
        outcomes: list[Outcome] = []
        special = {*result.failed, *result.vectors, *result.prompt_logprobs}
        if plan.loads:
            self._running.settle_loads(plan.loads, result.lost, held)
        for job in held:
            job.in_flight -= 1
        if result.unencoded:
            outcomes += self._fail_encoding(result.unencoded, ((plan, jobs, held), *self._in_flight))
        columns = zip(jobs, plan.rows.start, result.kept, result.tokens, strict=True)
        for row, (job, start, kept, tokens) in enumerate(columns):
            job.in_flight -= 1
            if not job.ended and not job.lost:
                if row in special:
                    outcome = self._settle_special(job, row, start, kept, result, now)
                else:
                    outcome = self._settle_row(job, start + kept, tokens, result.logprobs.get(row), None, now)
                if outcome is not None:
                    outcomes.append(outcome)
            if not job.in_flight and not job.active:
                self._running.retire(job)
        for job in held:
            if not job.in_flight and not job.active:
                self._running.retire(job)
        self._running.release_blocks(jobs[row] for row in result.distrusted)
        return tuple(outcomes)

    def _fail_encoding(
        self, unencoded: Mapping[bytes, str], plans: Iterable[tuple[StepPlan, list[Job], list[Job]]]
    ) -> Iterator[Outcome]:
        """End the requests that need media which could not be encoded, in these plans, one of which settles."""
        for hash in unencoded:
            self._encoder.fail(hash)
        for job, hash in (need for plan in plans for need in needs_of(*plan)):
            if hash in unencoded and not job.ended:
                yield self._end(Outcome(job.request, finish=FinishReason.ERROR, error=unencoded[hash]), job)

    def _settle_special(
        self, job: Job, row: int, start: int, kept: int, result: StepResult, now: float
    ) -> Outcome | None:
        """Settle a row that failed, gave a vector or scored a part of its prompt."""
        request = job.request
        if row in result.failed:
            return self._end(Outcome(request, finish=FinishReason.ERROR, error=result.failed[row]), job)
        tokens, scores = result.tokens[row], job.take_scores(start, result.prompt_logprobs.get(row))
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
        # Accepted drafts must be in the answer before the blocks that they fill are named by their content.
        taken, finish = job.accept(tokens) if tokens else (0, None)
        if computed >= job.next_kv_check:
            job.next_kv_check = self._kv.settle(job.table, min(computed, len(request)))
        if not tokens:
            assert computed < job.known or request.sampling is None, "a row was not sampled"
            return Outcome(request, prompt_logprobs=scores) if scores is not None else None
        if request.first_token is None:
            request.first_token = now
        self._totals.generation_tokens += taken
        if finish is None:
            return Outcome(request, tokens, logprobs, scores)
        tokens = tokens[:taken]
        stop = job.user_stop(tokens[-1]) if finish is FinishReason.STOP else None
        logprobs = logprobs and cut_logprobs(logprobs, slice(taken))
        return self._end(Outcome(request, tokens, logprobs, scores, finish=finish, stop=stop), job)

    def check(self) -> None:
        """Assert that blocks, slots and queues add up; for tests."""
        running = self._running
        residents = list(running)
        self._kv.check([job.table for job in residents])
        slots = [job.slot for job in residents]
        assert len(set(slots)) == len(slots), "two requests share a slot"
        assert len(slots) + running.slots.free == self.limits.max_num_seqs, "slots are lost"
        unmade = sum(group.unmade for group in self._groups.values())
        assert len(running) + len(self._waiting) == len(self._jobs) + unmade, "a request is nowhere, or twice"
        jobs = [job for group in self._groups.values() for job in group.jobs.values()]
        assert {job.request.id: job for job in jobs} == self._jobs, "a job is lost"
        for tenant in {job.tenant for job in residents}:
            assert tenant.running == sum(job.tenant is tenant for job in residents), "a tenant's slots are miscounted"
        rows = [job for _, jobs, held in self._in_flight for job in (*jobs, *held)]
        assert all(job.in_flight == rows.count(job) for job in residents), "rows in flight are miscounted"
