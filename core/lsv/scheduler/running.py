"""The running requests: those that hold a slot and blocks."""

from __future__ import annotations

from collections.abc import Iterator

from lsv.kv.manager import KVManager, Match
from lsv.kv.table import Table
from lsv.request.request import Status
from lsv.scheduler.job import Job
from lsv.scheduler.limits import Limits
from lsv.scheduler.slots import SlotPool


class RunningBatch:
    """Jobs from admission until their slot and blocks are free again.

    A job is either ``prefilling`` (has known tokens to plan), ``decoding``, or leaving: no row is planned for it any
    more, and its slot and blocks stay its own until its last row in flight has settled. That is the quarantine of
    freed blocks: no plan in flight ever names a block that someone else could write.
    """

    def __init__(self, limits: Limits, kv: KVManager) -> None:
        self.prefilling: dict[int, Job] = {}
        self.decoding: dict[int, Job] = {}
        self.slots = SlotPool(limits.max_num_seqs)
        self._limits = limits
        self._kv = kv
        self._draining: dict[int, Job] = {}
        self._unreleased: list[Table] = []

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding) + sum(not job.ended for job in self._draining.values())

    def __iter__(self) -> Iterator[Job]:
        """All that hold a slot."""
        for jobs in (self.prefilling, self.decoding, self._draining):
            yield from jobs.values()

    @property
    def draining(self) -> bool:
        """Whether blocks are on their way back."""
        return bool(self._draining)

    @property
    def preempting(self) -> bool:
        """Whether a preempted request still has rows in flight."""
        return any(not job.ended for job in self._draining.values())

    def needs(self, job: Job) -> int:
        """Most blocks the job will hold: for its known tokens, or for good if it must not be preempted again."""
        length = job.max_length if self._is_protected(job) else len(job.request)
        return self._kv.blocks_for(length, self._limits.tokens_in_flight)

    def _is_protected(self, job: Job) -> bool:
        return job.request.preemptions >= self._limits.max_preemptions

    def max_cached(self, job: Job) -> int:
        """How many of the job's tokens may come from the prefix cache."""
        return 0 if self._is_protected(job) and self._kv.windowed else job.max_cached

    def watermark(self) -> int:
        """Blocks to leave for the running: the rest of their prompts and one step of each."""
        step = (len(self.prefilling) + len(self.decoding)) * self._kv.growing_groups
        return step + sum(max(0, self.needs(job) - job.table.allocated) for job in self.prefilling.values())

    def admit(self, job: Job, match: Match) -> None:
        """A waiting job gets a slot and the blocks of its cached prefix."""
        request = job.request
        job.known = len(request)
        self._kv.allocate(job.table, match, job.known, self.needs(job) if self._is_protected(job) else 0)
        job.slot = self.slots.take()
        job.planned = request.computed = match.tokens
        job.next_kv_check = 0
        job.active = True
        request.status = Status.RUNNING
        self.prefilling[request.id] = job

    def start_decoding(self, job: Job) -> None:
        """All known tokens of the job are planned."""
        del self.prefilling[job.request.id]
        self.decoding[job.request.id] = job
        job.update_plannable()

    def victim(self) -> Job | None:
        """Who is preempted next: the last in line that is not protected."""
        candidates = [
            job for jobs in (self.prefilling, self.decoding) for job in jobs.values() if not job.table.reservation
        ]
        return max(candidates, key=lambda job: job.rank, default=None)

    def retire(self, job: Job) -> bool:
        """Plan nothing more for the job; True when it is gone with this call, having no row in flight."""
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
        job.slot = -1
        self._unreleased.append(job.table)
        return True

    def release_blocks(self) -> None:
        """Free the blocks of all that are gone since the last call, together, for the order of eviction."""
        if self._unreleased:
            self._kv.release(self._unreleased)
            self._unreleased.clear()
