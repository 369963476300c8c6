"""Chooses a step's tokens: running requests first, then waiting ones; the last in line give way when blocks run out."""

from __future__ import annotations

from lsv.kv.manager import KVManager
from lsv.scheduler.budget import PaddedBudget, StepBudget, StepCosts
from lsv.scheduler.drafts.speculation import Speculation
from lsv.scheduler.encoder_cache import EncoderCache
from lsv.scheduler.job import Job
from lsv.scheduler.limits import Limits
from lsv.scheduler.mutual import keep_whole, mutual_spans
from lsv.scheduler.pace import Pace
from lsv.scheduler.plan_builder import PlanBuilder
from lsv.scheduler.policy import Key, Policy
from lsv.scheduler.running import RunningBatch
from lsv.scheduler.tenant import Tenants
from lsv.scheduler.waiting import WaitingQueue

_STEPS_A_STAGE, _LEAST_SHARE = 2, 128
"""Into how many steps for each stage prompts are cut: while the first of them passes through the stages, others wait,
so more are better; and tokens from which on larger steps hardly take less time for each."""

_ARRIVING_TOKENS = 256
"""Tokens whose cache a step may load for waiting requests. The step waits for the loading."""


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
        tenants: Tenants,
        pace: Pace | None,
        speculation: Speculation | None,
    ) -> None:
        self._limits = limits
        self._kv = kv
        self._policy = policy
        self._waiting = waiting
        self._running = running
        self._encoder = encoder
        self._tenants = tenants
        self._pace = pace
        self._speculation = speculation

    def build(self, now: float) -> PlanBuilder:
        """The next step: running requests first, then waiting ones after a prefix look-up.

        It is empty when nothing can be planned now.
        """
        for id in self._kv.pending.take_unparked():
            self._waiting.unpark(id)
        for id in self._running.adapters.take_unparked():
            self._waiting.unpark(id)
        if self._kv.revocations.noted:
            self._kv.revocations.take_noted()
        plan = PlanBuilder(self._budget())
        if self._kv.tiers is not None:
            plan.revoke, plan.saves = self._kv.tiers.take_revoked(), self._kv.tiers.take_saves()
        self._encoder.begin_step(decoding=bool(self._running.decoding))
        if self._limits.mixed_batches:
            self._decode(plan)
            self._prefill(plan, now)
        else:
            self._take_turns(plan, now)
        if self._kv.arrivals is not None and not plan.loading:  # it may load the same blocks
            plan.load(self._kv.arrivals.take(max(1, _ARRIVING_TOKENS // self._kv.block_size), self._running.spare))
        return plan

    def _budget(self) -> StepBudget:
        most = quick = self._limits.max_num_batched_tokens
        if self._pace is not None and self._running.decoding:
            first = next(iter(self._running.prefilling.values()), None)
            quick = min(most, self._pace.prompt_tokens(0 if first is None else first.planned))
        prompt = self._policy.budget(len(self._running), StepCosts(most, quick))
        padding, chunked = self._limits.padding, self._limits.chunked_prefill
        if self._limits.stages > 1 and chunked:
            prompt = min(prompt, self._share(most))
        if padding is None:
            return StepBudget(most, max(1, prompt), chunked=chunked)
        return PaddedBudget(most, max(1, prompt), padding, chunked=chunked)

    def _share(self, most: int) -> int:
        """The prompt tokens of a step that leaves prompt tokens for the other stages' steps."""
        steps = _STEPS_A_STAGE * self._limits.stages
        waiting = sum(job.known - job.planned for job in self._running.prefilling.values())
        waiting += self._waiting.count_tokens(most * steps)
        return max(_LEAST_SHARE, -(-waiting // steps))

    def _take_turns(self, plan: PlanBuilder, now: float) -> None:
        """Plan prompts first, but alternate chunks with decoding, so that a long prompt stops no answer."""
        if self._running.decode_next:
            self._decode(plan)
        decoded = bool(plan.jobs)
        if not decoded:
            self._prefill(plan, now)
        self._running.decode_next = bool(plan.jobs) and not decoded and self._limits.chunked_prefill
        if not plan.jobs:
            self._decode(plan)

    # Running requests

    def _decode(self, plan: PlanBuilder) -> None:
        """The next token of each request whose known tokens are all planned."""
        decoding = self._running.decoding
        # A grammar must know the last token before it can say what may follow, and so must a drafter.
        stuck = [
            job
            for job in decoding.values()
            if job.plannable <= job.planned < job.max_planned and not (job.waits and (job.in_flight or job.held))
        ]
        # A job that just got a block can still be preempted for a later one, so all get theirs before any is planned.
        for job in [job for job in stuck if job.active and self._grow(job, job.planned + 1, plan)]:
            if job.active:
                job.update_plannable()
                plan.grow(job)
        ready = [
            job
            for job in decoding.values()
            if job.planned < job.plannable and not (job.waits and (job.in_flight or job.held))
        ]
        if self._limits.stages > 1:
            del ready[-(-len(decoding) // self._limits.stages) :]
        if self._speculation is not None:
            self._draft(ready, plan)
        plan.decode(ready)
        if self._tenants.several:
            for job in ready:
                job.tenant.charge(1)

    def _draft(self, ready: list[Job], plan: PlanBuilder) -> None:
        """Choose the drafts to verify beside the next tokens of ``ready`` jobs, as far as there are blocks for them.

        No request is preempted for a draft.
        """
        assert self._speculation is not None
        states = self._kv.draft_states
        if states is not None:
            for job in ready:
                plan.keep_state(job, states.group)
        if self._speculation.is_crowded(len(self._running) + len(self._waiting)):
            return
        chosen = self._speculation.choose(ready, plan.budget.tokens)
        spared = self._spared() if chosen and states is not None else 0
        for job, count in chosen:
            if states is not None:
                count = min(count, (self._kv.unreserved - spared) // states.width)
            if count <= 0:
                continue
            if self._kv.grow(job.table, job.planned + 1 + count, count):
                job.update_plannable()
                plan.grow(job)
            count = min(count, job.plannable - job.planned - 1)
            if count > 0 and (states is None or count * states.width <= self._kv.unreserved):
                plan.draft(job, count)
                if states is not None:
                    plan.draft_states(job, states.group, states.take(job.table, count), states.width)

    def _spared(self) -> int:
        """Blocks that draft states must leave for the next steps of running requests, and for the first waiting one."""
        head = self._waiting.head()
        return self._running.watermark() + (0 if head is None else self._running.most_blocks(head))

    def _prefill(self, plan: PlanBuilder, now: float) -> None:
        """The next chunks of prompts that are partly computed, then new ones.

        With several tenants, the next chunk is that of the one that has been served least, new prompts included: one
        tenant's long prompts must not keep another's first token waiting.
        """
        fair = self._tenants.several
        started = list(self._running.prefilling.values())
        if fair:
            started.sort(key=_in_line)
        for job in started:
            if fair:
                self._admit(plan, now, before=job)
            if not job.active:
                continue
            count = self._chunk(job, job.planned, job.known, plan)
            if not count:
                return
            if self._grow(job, job.planned + count, plan):
                self._take(job, count, plan)
        self._admit(plan, now)

    def _chunk(self, job: Job, start: int, stop: int, plan: PlanBuilder) -> int:
        """How many of the tokens from ``start`` to ``stop`` the step can take."""
        count = plan.budget.chunk(stop - start)
        if not (count and self._limits.mutual):
            return count
        return keep_whole(mutual_spans(job.request, self._limits.mutual), start, count, plan.budget.tokens)

    def _take(self, job: Job, count: int, plan: PlanBuilder) -> None:
        """Plan ``count`` known tokens of a job that has blocks for them, or fewer if embeddings are missing."""
        if job.request.media:
            count = self._computable(job, count, plan)
        if not count:  # the plan may still turn out empty, so it must not carry the blocks to the worker
            return
        plan.grow(job)
        plan.prefill(job, count)
        job.tenant.charge(count)
        self._encoder.release_consumed(job)
        if job.planned == job.known:
            self._running.start_decoding(job)

    def _computable(self, job: Job, count: int, plan: PlanBuilder) -> int:
        """How many of ``count`` tokens have, with what this step encodes, all embeddings they need."""
        computable = self._encoder.computable(job, count, plan)
        if computable < count and self._limits.mutual:
            computable = keep_whole(mutual_spans(job.request, self._limits.mutual), job.planned, computable, 0)
        return computable if computable == count or self._limits.chunked_prefill else 0

    # Waiting requests

    def _admit(self, plan: PlanBuilder, now: float, *, before: Job | None = None) -> None:
        """Admit waiting jobs, in order, as long as there are tokens, slots and blocks for the next one.

        With ``before``, only jobs of other tenants that are to be served before it.
        """
        running = self._running
        while plan.budget.tokens and not (plan.out_of_blocks or running.preempting):
            job = self._waiting.head()
            if job is None or (before is not None and not _goes_before(job, before)):
                return
            if not running.slots.free:
                if self._make_room(job):
                    continue
                return
            if job.held or not running.adapters.has_room(job):
                self._waiting.park(job)
                continue
            limit = running.max_cached(job)
            match = self._kv.match(job.table, limit)
            pending = self._kv.find_pending(job.table, match, limit)
            if pending is not None:
                self._waiting.park(job)
                self._kv.pending.park(pending, job.group.id)
                continue
            count = self._chunk(job, match.tokens, len(job.request), plan)
            if not count:
                return
            if not running.fits(job, match):
                if self._make_room(job):
                    continue
                return
            self._waiting.pop(job)
            running.admit(job, match, now)
            if job.request.adapter is not None:
                plan.entering += running.adapters.enter(job)
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
        """Preempt the last job in line; returns whether ``job`` should try again now."""
        if self._running.draining:  # the next settle returns their blocks
            return False
        victim = self._running.victim()
        return victim is not None and self._preempt(victim) and victim is not job

    def _make_room(self, job: Job) -> bool:
        """Preempt a job of a tenant above its share, for a job of a tenant below its share.

        Returns whether ``job`` should try again now.
        """
        if not self._tenants.several or self._running.draining:
            return False
        victim = self._running.victim_for(job)
        return victim is not None and self._preempt(victim)

    def _preempt(self, job: Job) -> bool:
        """Preempt a job. Returns whether its blocks and slot are free now, or only once its rows in flight settle."""
        if not self._running.retire(job):
            return False
        self._running.release_blocks()
        return True


def _urgency(job: Job) -> tuple[Key, float]:
    """The order between jobs of different tenants."""
    return job.group.key_between_tenants, job.tenant.served


def _in_line(job: Job) -> tuple[Key, float, Key]:
    """The order between jobs of any tenants. Jobs of one tenant are ordered by the policy's key."""
    return *_urgency(job), job.group.key


def _goes_before(waiting: Job, running: Job) -> bool:
    """Whether a waiting prompt goes before the running prompt of another tenant."""
    return waiting.tenant is not running.tenant and _urgency(waiting) <= _urgency(running)
