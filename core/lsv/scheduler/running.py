"""The running requests: those that hold a slot and blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from lsv.kv.lookup import Match
from lsv.kv.manager import KVManager
from lsv.kv.table import Table
from lsv.kv.tiers.records import Load
from lsv.request.request import Status
from lsv.scheduler.adapters import ResidentAdapters
from lsv.scheduler.encoder_cache import EncoderCache
from lsv.scheduler.job import Job, Place
from lsv.scheduler.limits import Limits
from lsv.scheduler.outcome import Totals
from lsv.scheduler.policy import Key
from lsv.scheduler.slots import SlotPool
from lsv.scheduler.waiting import WaitingQueue


class RunningBatch:
    """Jobs from admission until their slot, blocks and embeddings are given back.

    A job is *prefilling* while some of its known tokens are not planned, and *decoding* from then on: each further
    token is sampled by the row before. Both are states of a job, not phases of the scheduler; a step can hold rows of
    both. A *draining* job has ended or is preempted: no row is planned for it any more, but it keeps its slot and
    blocks until its last row in flight has settled. That is the quarantine of freed blocks: no plan in flight names a
    block that another request could write. Preempted jobs then go back to ``waiting``.
    """

    def __init__(
        self, limits: Limits, kv: KVManager, encoder: EncoderCache, waiting: WaitingQueue, totals: Totals
    ) -> None:
        self.prefilling: dict[int, Job] = {}
        """By request id, in the order of admission."""
        self.decoding: dict[int, Job] = {}
        """By request id, in the order in which they began to decode."""
        self.decode_next = False
        """Whether decoding rows are next, if a step can't hold both kinds."""
        self.slots = SlotPool(limits.max_num_seqs)
        self.adapters = ResidentAdapters(limits.adapter_slots, patience=limits.max_num_seqs)
        self._draining: dict[int, Job] = {}
        self._unreleased: list[Table] = []
        self._limits = limits
        self._kv = kv
        self._encoder = encoder
        self._waiting = waiting
        self._totals = totals

    def __len__(self) -> int:
        """Requests that have not ended."""
        return len(self.prefilling) + len(self.decoding) + sum(not job.ended for job in self._draining.values())

    def __iter__(self) -> Iterator[Job]:
        """All jobs that hold a slot."""
        for jobs in (self.prefilling, self.decoding, self._draining):
            yield from jobs.values()

    @property
    def draining(self) -> bool:
        """Whether blocks come back when rows in flight settle."""
        return bool(self._draining)

    @property
    def preempting(self) -> bool:
        """Whether a preempted request still has rows in flight."""
        return any(not job.ended for job in self._draining.values())

    # Admission

    def admit(self, job: Job, match: Match, now: float) -> None:
        """Give a waiting job a slot and the blocks of its cached prefix."""
        request = job.request
        job.known = len(request)
        self._kv.allocate(job.table, match, job.known, self.most_blocks(job) if self._is_protected(job) else 0)
        job.slot = self.slots.take()
        job.planned = match.tokens
        job.next_kv_check = 0
        job.active = True
        request.status = Status.RUNNING
        job.tenant.running += 1
        self.prefilling[request.id] = job
        if not (request.preemptions or job.lost):
            request.repeated = _repeated(job, match, self._kv.block_size)
        if request.first_planned is None:
            request.first_planned, request.cached = now, match.tokens
            found = match.tokens - match.behind
            self._totals.count_prompt(len(request.prompt), found, looked_up=self._kv.prefix_caching)
            if self._kv.tiers is not None:
                self._kv.tiers.count(len(request.prompt) - found, match.behind)
        if job.lost:
            job.lost, request.cached = False, match.tokens

    def fits(self, job: Job, match: Match) -> bool:
        """Whether a waiting job finds enough blocks besides those that running jobs need soon."""
        needed = self.most_blocks(job) - self._kv.in_use(match)
        return self.spare >= needed

    @property
    def spare(self) -> int:
        """Blocks that running jobs do not need soon."""
        return self._kv.unreserved - self.watermark()

    def max_cached(self, job: Job) -> int:
        """How many of the job's tokens may come from the prefix cache."""
        return 0 if self._is_protected(job) and self._kv.windowed else job.max_cached

    def watermark(self) -> int:
        """Blocks to leave for the running jobs: for the rest of their known tokens and one step of each."""
        step = (len(self.prefilling) + len(self.decoding)) * self._kv.growing_groups
        return step + sum(max(0, self.most_blocks(job) - job.table.allocated) for job in self.prefilling.values())

    def most_blocks(self, job: Job) -> int:
        """Blocks that the job needs for its known tokens, or for all tokens if it must not be preempted again."""
        length = job.max_length if self._is_protected(job) else len(job.request)
        return self._kv.blocks_for(length, self._limits.tokens_in_flight)

    def _is_protected(self, job: Job) -> bool:
        return job.request.preemptions >= self._limits.max_preemptions

    def start_decoding(self, job: Job) -> None:
        """Let a job decode whose known tokens are all planned."""
        del self.prefilling[job.request.id]
        self.decoding[job.request.id] = job
        job.update_plannable()

    # Leaving the batch

    def victim(self) -> Job | None:
        """The job to preempt when blocks run out: the last of the least urgent ones, of the tenant with the most."""
        return max(self._preemptible(), key=_last_in_line, default=None)

    def victim_for(self, newcomer: Job) -> Job | None:
        """The job to preempt for a tenant that has less than its share of the slots.

        None if no other tenant is above its share, or only with jobs that are more urgent.
        """
        tenant, key = newcomer.tenant, newcomer.group.key_between_tenants
        jobs = (
            job
            for job in self._preemptible()
            if job.tenant is not tenant and job.group.key_between_tenants >= key and job.tenant.exceeds_share_of(tenant)
        )
        return max(jobs, key=_last_in_line, default=None)

    def _preemptible(self) -> Iterator[Job]:
        """The running jobs without a reservation."""
        for jobs in (self.prefilling, self.decoding):
            for job in jobs.values():
                if not job.table.reservation:
                    yield job

    def retire(self, job: Job) -> bool:
        """Stop planning a job, which has ended or is preempted; returns whether it has left the batch.

        With rows in flight it drains: this is called again when the last one has settled. The blocks come back with
        the next ``release_blocks``.
        """
        if job.slot < 0:
            return False
        id = job.request.id
        if job.active:
            job.active = False
            (self.prefilling if id in self.prefilling else self.decoding).pop(id)
        if job.in_flight:
            self._draining[id] = job
            return False
        self._draining.pop(id, None)
        self.slots.give_back(job.slot)
        job.tenant.running -= 1
        job.slot = -1
        if job.adapter is not None:
            self.adapters.leave(job)
        self._unreleased.append(job.table)
        self._encoder.unref(job)
        if not job.ended:
            self._requeue(job)
        return True

    def settle_loads(self, loads: Iterable[Load], lost: Collection[int], held: Iterable[Job]) -> None:
        """Have jobs computed anew into whose blocks nothing could be loaded; nobody else has found those yet.

        ``lost`` are those of the loads; ``held`` are the jobs that began in the plan.
        """
        assert self._kv.tiers is not None, "there is nothing behind the device"
        by_slot = {job.slot: job for job in held}
        for index, load in enumerate(loads):
            if load.slot < 0:
                assert self._kv.arrivals is not None, "nothing arrives"
                self._kv.arrivals.settle(load, there=index not in lost)
                continue
            if index not in lost:
                continue
            self._kv.tiers.lose(load.key)
            job = by_slot[load.slot]
            if not job.ended and not job.lost:
                job.lost = True
                self.retire(job)

    def _distrust(self, job: Job) -> None:
        """Distrust all blocks that the job read or wrote, because its numbers broke; other readers would fail, too."""
        self._kv.revocations.revoke_table(job.table)
        for media in job.request.media:
            self._encoder.fail(media.hash)

    def _requeue(self, job: Job) -> None:
        """Queue a preempted or lost job again, to be computed anew."""
        if not job.lost:
            self._totals.preemptions += 1
            self._totals.preempted = job.request.spec.request_id
            job.request.preemptions += 1
        job.request.status = Status.WAITING
        self._waiting.requeue(job)

    def release_blocks(self, distrusted: Iterable[Job] = ()) -> None:
        """Return the blocks of all jobs that have left since the last call, together for the sake of eviction order.

        Blocks that ``distrusted`` jobs read or wrote are revoked first.
        """
        for job in distrusted:
            self._distrust(job)
        if self._unreleased:
            self._kv.release(self._unreleased)
            self._unreleased.clear()


def _repeated(job: Job, match: Match, block_size: int) -> int:
    """Tokens of whole blocks that another sequence of the request has computed, but that were not found."""
    request = job.request
    if request.first_planned is None and not request.index % request.spec.candidates:
        return 0  # it computes them for the first time
    return max(0, (job.known - 1) // block_size * block_size - match.tokens)


def _last_in_line(job: Job) -> tuple[Key, float, Place]:
    """Sort key whose maximum is the least urgent job; ties: largest share of the tenant, latest arrival."""
    return job.group.key_between_tenants, job.tenant.running / job.tenant.weight, job.place
