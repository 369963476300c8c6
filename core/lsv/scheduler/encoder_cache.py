"""Which media have embeddings in the worker, and which are encoded next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from lsv.request.media import Media
from lsv.scheduler.job import Job
from lsv.scheduler.plan import StepPlan
from lsv.scheduler.plan_builder import PlanBuilder


class Entry:
    """The embeddings of one media item."""

    __slots__ = ("done", "tokens", "users")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        """How many embeddings there are."""
        self.done = 0
        """Parts of the encoder's work that are done or planned."""
        self.users: set[int] = set()
        """The requests, by id, that still read them."""


class EncoderCache:
    """The scheduler's books of the embeddings that the worker keeps, by hash: at most ``capacity`` tokens of them.

    A pass through the encoder is cut into ``parts``. While requests are decoding, a step takes one of them, so that a
    large image does not hold up their answers. Embeddings without users are evicted when space is needed, the least
    recently used first.
    """

    def __init__(self, capacity: int, parts: int) -> None:
        self._capacity = capacity
        self._parts = parts
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._consumed: list[tuple[Job, Media]] = []
        self.failed: list[bytes] = []
        """Hashes of items that could not be encoded, of which the worker is to be told."""
        self._used = 0
        self._parts_left = 0  # of this step; negative: no limit

    def begin_step(self, *, decoding: bool) -> None:
        self._parts_left = 1 if decoding else -1
        for job, media in self._consumed:
            self._unref(job, media)
        self._consumed.clear()

    def fail(self, hash: bytes) -> None:
        """The item could not be encoded; requests that still need it have it encoded anew."""
        entry = self._entries.pop(hash, None)
        if entry is not None:
            self._used -= entry.tokens
            self.failed.append(hash)

    def forget_failed(self, plan: PlanBuilder) -> None:
        """The worker forgets the items that could not be encoded, before it encodes any in this step."""
        for hash in self.failed:
            plan.forget(hash)
        self.failed.clear()

    def computable(self, job: Job, count: int, plan: PlanBuilder) -> int:
        """How many of the job's next ``count`` tokens can be computed in this step; encodes what it can for them."""
        start = job.planned
        for place, media in enumerate(job.request.media):
            if media.cross:
                job.table.cross_ready = job.table.cross_ready or self._encode(job, place, media, plan)
                if not job.table.cross_ready:
                    return 0
            elif media.stop > start and media.start < start + count and not self._encode(job, place, media, plan):
                return max(0, media.start - start)
        return count

    def _encode(self, job: Job, place: int, media: Media, plan: PlanBuilder) -> bool:
        """Plan as many parts as the step allows; whether the embeddings will be complete in this step."""
        entry = self._entries.get(media.hash)
        if entry is None:
            if not self._parts_left or not self._make_space(media.count, plan):
                return False
            entry = self._entries[media.hash] = Entry(media.count)
            self._used += media.count
        entry.users.add(job.request.id)
        self._entries.move_to_end(media.hash)
        missing = self._parts - entry.done
        parts = missing if self._parts_left < 0 else min(missing, self._parts_left)
        first, entry.done = entry.done, entry.done + parts
        self._parts_left -= parts if self._parts_left > 0 else 0
        ready = entry.done == self._parts
        if parts or (media.cross and ready):
            plan.encode(job, place, first, entry.done)
        return ready

    def _make_space(self, count: int, plan: PlanBuilder) -> bool:
        """Evict embeddings until ``count`` more fit; returns False and evicts none if they can't."""
        unused = [hash for hash, entry in self._entries.items() if not entry.users]
        if self._used - sum(self._entries[hash].tokens for hash in unused) + count > self._capacity:
            return False
        for hash in unused:
            if self._used + count <= self._capacity:
                break
            self._used -= self._entries.pop(hash).tokens
            plan.forget(hash)
        return True

    def release_consumed(self, job: Job) -> None:
        """From the next step on, the job does not read media that lie before its ``planned`` tokens any more."""
        self._consumed += [(job, media) for media in job.request.media if media.cross or media.stop <= job.planned]

    def unref(self, job: Job) -> None:
        """The job reads no embeddings any more."""
        for media in job.request.media:
            self._unref(job, media)

    def _unref(self, job: Job, media: Media) -> None:
        entry = self._entries.get(media.hash)
        if entry is not None:
            entry.users.discard(job.request.id)

    def clear(self) -> None:
        """The worker is gone, and all embeddings with it."""
        self._entries.clear()
        self._consumed.clear()
        self.failed.clear()
        self._used = 0


def needs_of(plan: StepPlan, jobs: Sequence[Job], held: Sequence[Job]) -> Iterator[tuple[Job, bytes]]:
    """Who needs which media in a plan, by hash: those for whom it encodes, and those whose rows read embeddings."""
    by_slot = {job.slot: job for job in held}
    for piece in plan.encode:
        job = by_slot[piece.slot]
        yield job, job.request.media[piece.place].hash
    for job, start, count in zip(jobs, plan.rows.start, plan.rows.count, strict=True):
        for media in job.request.media:
            if not media.cross and start < media.stop and media.start < start + count:
                yield job, media.hash
