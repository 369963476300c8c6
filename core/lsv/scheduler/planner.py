"""Chooses a step's tokens: running requests first, then waiting ones; the last in line give way when blocks run out."""

from __future__ import annotations

from lsv.kv.manager import KVManager
from lsv.scheduler.budget import PaddedBudget, StepBudget, StepCosts
from lsv.scheduler.encoder_cache import EncoderCache
from lsv.scheduler.job import Job
from lsv.scheduler.limits import Limits
from lsv.scheduler.pace import Pace
from lsv.scheduler.plan_builder import PlanBuilder
from lsv.scheduler.policy import Policy
from lsv.scheduler.running import RunningBatch
from lsv.scheduler.waiting import WaitingQueue


class Planner:
    """Works on the queues and caches it is given, which belong to the scheduler; it keeps no state of its own."""

    def __init__(
        self,
        limits: Limits,
        kv: KVManager,
        policy: Policy,
        *,
        waiting: WaitingQueue,
        running: RunningBatch,
        encoder: EncoderCache,
        pace: Pace | None,
    ) -> None:
        self._limits = limits
        self._kv = kv
        self._policy = policy
        self._waiting = waiting
        self._running = running
        self._encoder = encoder
        self._pace = pace

    def build(self, now: float) -> PlanBuilder:
        """The next step: running requests first, then waiting ones after a prefix look-up.

        It is empty when nothing can be planned now.
        """
        for id in self._kv.pending.take_unparked():
            self._waiting.unpark(id)
        plan = PlanBuilder(self._budget())
        self._encoder.begin_step(decoding=bool(self._running.decoding))
        if self._limits.mixed_batches:
            self._decode(plan)
            if self._continue_prefills(plan):
                self._admit(plan, now)
        else:
            self._take_turns(plan, now)
        return plan

    def _budget(self) -> StepBudget:
        most = quick = self._limits.max_num_batched_tokens
        if self._pace is not None and self._running.decoding:
            first = next(iter(self._running.prefilling.values()), None)
            quick = min(most, self._pace.prompt_tokens(0 if first is None else first.planned))
        prompt = self._policy.budget(len(self._running), StepCosts(most, quick))
        padding, chunked = self._limits.padding, self._limits.chunked_prefill
        if padding is None:
            return StepBudget(most, max(1, prompt), chunked=chunked)
        return PaddedBudget(most, max(1, prompt), padding, chunked=chunked)

    def _take_turns(self, plan: PlanBuilder, now: float) -> None:
        """Prompts first; chunks of prompts take turns with decoding, so that a long prompt stops nobody's answer."""
        if self._running.decode_next:
            self._decode(plan)
        decoded = bool(plan.jobs)
        if not decoded and self._continue_prefills(plan):
            self._admit(plan, now)
        self._running.decode_next = bool(plan.jobs) and not decoded and self._limits.chunked_prefill
        if not plan.jobs:
            self._decode(plan)

    # Running requests

    def _decode(self, plan: PlanBuilder) -> None:
        """The next token of each request whose known tokens are all planned."""
        decoding = self._running.decoding
        stuck = [job for job in decoding.values() if job.plannable <= job.planned < job.max_planned]
        # A job that just got a block can still be preempted for a later one, so all get theirs before any is planned.
        for job in [job for job in stuck if job.active and self._grow(job, job.planned + 1, plan)]:
            if job.active:
                job.update_plannable()
                plan.grow(job)
        plan.decode([job for job in decoding.values() if job.planned < job.plannable])

    def _continue_prefills(self, plan: PlanBuilder) -> bool:
        """The next chunks of prompts that are partly computed; False when the step is full before the last of them."""
        for job in tuple(self._running.prefilling.values()):
            count = plan.budget.chunk(job.known - job.planned)
            if not count:
                return False
            if job.active and self._grow(job, job.planned + count, plan):
                self._take(job, count, plan)
        return True

    def _take(self, job: Job, count: int, plan: PlanBuilder) -> None:
        """Plan ``count`` known tokens of a job that has blocks for them, or fewer if embeddings are missing."""
        plan.grow(job)
        if job.request.media:
            count = self._computable(job, count, plan)
        if not count:
            return
        plan.prefill(job, count)
        self._encoder.release_consumed(job)
        if job.planned == job.known:
            self._running.start_decoding(job)

    def _computable(self, job: Job, count: int, plan: PlanBuilder) -> int:
        """How many of ``count`` tokens have, with what this step encodes, all embeddings they need."""
        computable = self._encoder.computable(job, count, plan)
        return computable if computable == count or self._limits.chunked_prefill else 0

    # Waiting requests

    def _admit(self, plan: PlanBuilder, now: float) -> None:
        """Admit waiting jobs, in order, as long as there are tokens, slots and blocks for the next one."""
        running = self._running
        while plan.budget.tokens and running.slots.free and not (plan.out_of_blocks or running.preempting):
            job = self._waiting.head()
            if job is None:
                return
            limit = running.max_cached(job)
            match = self._kv.match(job.table, limit)
            pending = self._kv.find_pending(job.table, match, limit)
            if pending is not None:
                self._waiting.park()
                self._kv.pending.park(pending, job.request.id)
                continue
            count = plan.budget.chunk(len(job.request) - match.tokens)
            if not count or not running.fits(job, match):
                return
            self._waiting.pop()
            running.admit(job, match, now)
            plan.begin(job)
            grown = self._grow(job, job.planned + count, plan)
            assert grown, "an admitted request has blocks for its prompt"
            self._take(job, count, plan)

    # Preemption

    def _grow(self, job: Job, tokens: int, plan: PlanBuilder) -> bool:
        """Get the job blocks for ``tokens`` tokens; False when it has to wait for them or was preempted itself."""
        while not self._kv.grow(job.table, tokens):
            plan.out_of_blocks = True
            if not self._preempt_for(job):
                return False
        return True

    def _preempt_for(self, job: Job) -> bool:
        """Preempt the last in line; whether ``job`` should try again now."""
        running = self._running
        if running.draining:  # their blocks come back with the next settle
            return False
        victim = running.victim()
        if victim is None or not running.retire(victim):
            return False
        running.release_blocks()
        return victim is not job
