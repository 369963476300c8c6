"""A step plan while it is being built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from lsv.kv.tiers.records import Load, Save
from lsv.request.request import Request
from lsv.scheduler.budget import StepBudget
from lsv.scheduler.job import Job
from lsv.scheduler.plan import Begin, Encode, Enter, Grown, KeptState, Kind, Rows, StepPlan


class GuidedRow(NamedTuple):
    """A row that samples what a grammar allows."""

    row: int
    request: Request
    drafts: tuple[int, ...] = ()
    """The ids of its drafts, behind each of which it samples, too."""


class PlanBuilder:
    """Collects rows by columns. Decoding rows come before prompt rows."""

    __slots__ = (
        "_begin", "_blocks", "_chunks", "_draft_states", "_drafts", "_encode", "_forget", "_kept_states", "_loads",
        "_samples", "_slots", "_starts", "budget", "entering", "guided", "held", "jobs", "out_of_blocks", "revoke",
        "saves",
    )  # fmt: skip

    def __init__(self, budget: StepBudget) -> None:
        self.budget = budget
        self.jobs: list[Job] = []
        """The jobs of the rows, in order."""
        self.held: list[Job] = []
        """The jobs of ``begin`` and ``encode``: like a row in flight, these keep the job's slot and blocks."""
        self.guided: list[GuidedRow] = []
        self.entering: list[Enter] = []
        """The adapters that enter slots."""
        self.revoke: tuple[bytes, ...] = ()
        """Wrong contents to remove from stores elsewhere."""
        self.saves: tuple[Save, ...] = ()
        """Contents to copy from the device before their blocks are reused."""
        self.out_of_blocks = False
        """Whether a row lacked blocks, in which case no job is admitted in this step."""
        self._slots: list[int] = []
        self._starts: list[int] = []
        self._chunks: list[int] = []
        self._samples: list[bool] = []
        self._drafts: dict[int, int] = {}  # by slot
        self._begin: list[Begin] = []
        self._blocks: list[Grown] = []
        # Tuples, which cost nothing while they are empty: few steps have any of these.
        self._kept_states: tuple[KeptState, ...] = ()
        self._draft_states: tuple[Grown, ...] = ()
        self._encode: list[Encode] = []
        self._forget: list[bytes] = []
        self._loads: list[Load] = []

    @property
    def empty(self) -> bool:
        """Whether the step would do nothing, and carry nothing to the worker."""
        return not self.jobs and not self.held and not self.saves and not self.revoke and not self.loading

    @property
    def loading(self) -> bool:
        """Whether anything comes back to the device."""
        return self._loads != []

    def decode(self, jobs: list[Job]) -> None:
        """One more token of each job whose next token is sampled by the row before, as many as the step can take."""
        jobs = jobs[: self.budget.tokens]
        self.budget.tokens -= len(jobs)
        self.jobs += jobs
        for job in jobs:
            start = job.planned
            self._slots.append(job.slot)
            self._starts.append(start)
            job.planned = start + 1
            job.in_flight += 1
            if job.waits:
                self._add_waiting(job)

    def _add_waiting(self, job: Job) -> None:
        """Plan the rest for a decoding job whose last token is known."""
        count = self._drafts.get(job.slot, 0)
        if job.guided:
            drafts = job.drafting.proposed[:count] if job.drafting is not None else ()
            self.guided.append(GuidedRow(len(self._slots) - 1, job.request, drafts))
        job.planned += count

    def draft(self, job: Job, count: int) -> None:
        """So many drafts are verified beside the job's next token, which is planned afterwards."""
        if count > 0:
            job.waits = True
            self._drafts[job.slot] = count
            self.budget.tokens -= count

    def draft_states(self, job: Job, group: int, blocks: tuple[int, ...], groups: int) -> None:
        """Where the states before the job's drafts go, in so many groups."""
        self._draft_states += (Grown(job.slot, group, blocks, groups),)

    def keep_state(self, job: Job, group: int) -> None:
        """Send the worker the place of the state from which the job continues, if it has moved."""
        if job.table.kept_state is not None:
            column, blocks = job.table.kept_state
            self._kept_states += (KeptState(job.slot, group, column, blocks),)
            job.table.kept_state = None

    def prefill(self, job: Job, count: int) -> None:
        """The next ``count`` of a job's known tokens."""
        self.jobs.append(job)
        self._slots.append(job.slot)
        self._starts.append(job.planned)
        self._chunks.append(count)
        job.planned += count
        job.in_flight += 1
        self._samples.append(job.planned == job.known)
        if job.guided and job.planned == job.known:
            self.guided.append(GuidedRow(len(self._slots) - 1, job.request))
        self.budget.spend(count)

    def encode(self, job: Job, place: int, first: int, last: int) -> None:
        """Parts of the encoder's work on one of the job's media, see ``Encode``."""
        self._encode.append(Encode(job.slot, place, first, last))
        self._hold(job)

    def forget(self, hash: bytes) -> None:
        """Embeddings that the worker need not keep."""
        self._forget.append(hash)

    def begin(self, job: Job) -> None:
        """The job enters its slot, with its blocks for cross-attention and what is to be loaded into others."""
        self._begin.append(_begin(job.slot, job.request, job.adapter))
        if job.table.loads:
            self._loads += [msgspec.structs.replace(load, slot=job.slot) for load in job.table.loads]
            job.table.loads = []
        self._hold(job)
        for cohort, blocks in zip(job.table.cross_cohorts, job.table.cross, strict=True):
            self._blocks.append(Grown(job.slot, cohort.first, tuple(blocks), cohort.width))

    def load(self, loads: Sequence[Load]) -> None:
        """Load contents for no running request."""
        self._loads += loads

    def _hold(self, job: Job) -> None:
        self.held.append(job)
        job.in_flight += 1

    def grow(self, job: Job) -> None:
        """Send the worker the job's new blocks."""
        for cohort, blocks in job.table.take_grown():
            self._blocks.append(Grown(job.slot, cohort.first, blocks, cohort.width))

    def finish(self, step: int, end: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            step=step,
            kind=self._kind(),
            begin=tuple(self._begin),
            end=end,
            rows=self._rows(),
            blocks=tuple(self._blocks),
            kept_states=self._kept_states,
            draft_states=self._draft_states,
            revoke=self.revoke,
            saves=self.saves,
            loads=tuple(self._loads),
            forget=tuple(self._forget),
            encode=tuple(self._encode),
            adapters=tuple(self.entering),
            masked=self.guided != [],
        )

    def _kind(self) -> Kind:
        if not self.jobs:
            return Kind.ENCODE if self._encode else Kind.IDLE
        if not self._chunks:
            return Kind.PREFILL if self._drafts else Kind.DECODE
        return Kind.PREFILL if len(self._chunks) == len(self.jobs) else Kind.MIXED

    def _rows(self) -> Rows:
        decoding = len(self.jobs) - len(self._chunks)
        rows = Rows(
            slot=tuple(self._slots),
            start=tuple(self._starts),
            count=(1,) * decoding + tuple(self._chunks),
            wants_logits=(True,) * decoding + tuple(self._samples),
        )
        return self._with_drafts(rows) if self._drafts else rows

    def _with_drafts(self, rows: Rows) -> Rows:
        drafts = tuple(self._drafts.get(slot, 0) for slot in rows.slot)
        count = tuple(count + more for count, more in zip(rows.count, drafts, strict=True))
        return msgspec.structs.replace(rows, count=count, drafts=drafts)


def _begin(slot: int, request: Request, adapter: int | None) -> Begin:
    return Begin(
        slot=slot,
        ids=request.ids(0, len(request)),
        prompt=len(request.prompt),
        params=request.sampling,
        pooling=request.pooling,
        seed=request.seed,
        stop_ids=request.stop_ids,
        bad_words=request.bad_words,
        adapter=adapter,
        media=request.media,
        positions=request.positions,
        second=request.second,
        salt=request.spec.salt,
    )
