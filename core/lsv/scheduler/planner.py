"""Chooses a step's tokens: running requests first, then waiting ones; the last in line give way when blocks run out."""

from __future__ import annotations

from lsv.kv.manager import KVManager, Match
from lsv.request.request import Status
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
    """Moves jobs from the waiting room into the batch and, by preemption, back."""

    def __init__(self, limits: Limits, kv: KVManager, policy: Policy) -> None:
        self.waiting = WaitingQueue()
        self.batch = RunningBatch(limits, kv)
        self.preemptions = self.prompt_tokens = self.prefix_queries = self.prefix_hits = 0
        self.encoder = EncoderCache(limits.encoder_tokens, limits.encoder_parts)
        self._limits = limits
        self._kv = kv
        self._policy = policy
        self.pace = None if limits.max_itl is None else Pace(limits.max_itl)
        self._short = False  # blocks ran out in this step: nobody is admitted
        self._decode_next = False

    def build(self, now: float) -> PlanBuilder:
        """The next step's rows; empty when nothing can be planned now."""
        for id in self._kv.pending.take_unparked():
            self.waiting.unpark(id)
        self._short = False
        plan = PlanBuilder(self._budget())
        self.encoder.begin_step(decoding=bool(self.batch.decoding))
        if self._limits.mixed_batches:
            self._decode(plan)
            self._prefill(plan, now)
        else:
            self._fill_unmixed(plan, now)
        return plan

    def _budget(self) -> StepBudget:
        most = quick = self._limits.max_num_batched_tokens
        if self.pace is not None and self.batch.decoding:
            first = next(iter(self.batch.prefilling.values()), None)
            quick = min(most, self.pace.prompt_tokens(0 if first is None else first.planned))
        prompt = self._policy.budget(len(self.batch), StepCosts(most, quick))
        padding, chunked = self._limits.padding, self._limits.chunked_prefill
        if padding is None:
            return StepBudget(most, max(1, prompt), chunked=chunked)
        return PaddedBudget(most, max(1, prompt), padding, chunked=chunked)

    def _fill_unmixed(self, plan: PlanBuilder, now: float) -> None:
        """Prompts first; chunks of prompts take turns with decoding, so that a long prompt stops nobody's answer."""
        if self._decode_next:
            self._decode(plan)
        if not plan.jobs:
            self._prefill(plan, now)
            self._decode_next = bool(plan.jobs) and self._limits.chunked_prefill
        else:
            self._decode_next = False
        if not plan.jobs:
            self._decode(plan)

    def _decode(self, plan: PlanBuilder) -> None:
        decoding = self.batch.decoding
        stuck = [job for job in decoding.values() if job.plannable <= job.planned < job.max_planned]
        # Whoever gets a block may still be preempted for one behind it, so all is settled before a row is planned.
        for job in [job for job in stuck if job.active and self._grow(job, job.planned + 1)]:
            if job.active:
                job.update_plannable()
                plan.grow(job)
        plan.decode([job for job in decoding.values() if job.planned < job.plannable])

    def _prefill(self, plan: PlanBuilder, now: float) -> None:
        for job in tuple(self.batch.prefilling.values()):
            count = plan.budget.chunk(job.known - job.planned)
            if not count:
                return
            if job.active and self._grow(job, job.planned + count):
                self._take(job, count, plan)
        self._admit(plan, now)

    def _take(self, job: Job, count: int, plan: PlanBuilder) -> None:
        plan.grow(job)
        if job.request.media:
            count = self._encode(job, count, plan)
        if not count:
            return
        plan.prefill(job, count)
        self.encoder.release_consumed(job)
        if job.planned == job.known:
            self.batch.start_decoding(job)

    def _encode(self, job: Job, count: int, plan: PlanBuilder) -> int:
        """How many of ``count`` tokens have, with what this step encodes, all embeddings they need."""
        reach = self.encoder.computable(job, count, plan)
        return reach if reach == count or self._limits.chunked_prefill else 0

    # Admission

    def _admit(self, plan: PlanBuilder, now: float) -> None:
        """Let waiting jobs in, in order, as long as there are tokens, slots and blocks for the next one."""
        while plan.budget.tokens and self.batch.slots.free and not (self._short or self.batch.preempting):
            job = self.waiting.head()
            if job is None:
                return
            most = self.batch.max_cached(job)
            match = self._kv.match(job.table, most)
            pending = self._kv.find_pending(job.table, match, most)
            if pending is not None:
                self.waiting.park()
                self._kv.pending.park(pending, job.request.id)
                continue
            count = plan.budget.chunk(len(job.request) - match.tokens)
            if not count or not self._fits(job, match):
                return
            self.waiting.pop()
            self._enter(job, match, now)
            plan.begin(job)
            grown = self._grow(job, job.planned + count)
            assert grown, "an admitted request has blocks for its prompt"
            self._take(job, count, plan)

    def _fits(self, job: Job, match: Match) -> bool:
        needed = self.batch.needs(job) - self._kv.in_use(match)
        return self._kv.unreserved >= needed + self.batch.watermark()

    def _enter(self, job: Job, match: Match, now: float) -> None:
        request = job.request
        self.batch.admit(job, match)
        if request.first_planned is not None:
            return
        request.first_planned = now
        request.cached = match.tokens
        self.prompt_tokens += len(request.prompt)
        if self._kv.prefix_caching:
            self.prefix_queries += len(request.prompt)
            self.prefix_hits += match.tokens

    # Blocks

    def _grow(self, job: Job, tokens: int) -> bool:
        """Give the job blocks for ``tokens`` tokens; False when it has to wait or had to leave."""
        while not self._kv.grow(job.table, tokens):
            if not self._make_room(job):
                return False
        return True

    def _make_room(self, job: Job) -> bool:
        """Preempt the last in line; whether ``job`` should try again now."""
        self._short = True
        if self.batch.draining:  # their blocks come back with the next settle
            return False
        victim = self.batch.victim()
        if victim is None or not self.dismiss(victim):
            return False
        self.batch.release_blocks()
        return victim is not job

    def dismiss(self, job: Job) -> bool:
        """Take a job out of the batch, back into the waiting room unless it has ended.

        With rows in flight it only starts to leave: False, and to be called again when the last one has settled.
        """
        if not self.batch.retire(job):
            return False
        self.encoder.unref(job)
        if not job.ended:
            self.preemptions += 1
            job.request.preemptions += 1
            job.request.computed = 0
            job.request.status = Status.WAITING
            self.waiting.add(job)
        return True
