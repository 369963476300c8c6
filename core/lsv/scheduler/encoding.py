"""Which media have embeddings in the worker, and which are encoded next."""

from __future__ import annotations

from collections import OrderedDict

from lsv.request.media import Media
from lsv.scheduler.draft import Draft
from lsv.scheduler.job import Job


class Item:
    """Embeddings that are there, or under way once fewer than all parts are ``done``; ``users`` still read them."""

    __slots__ = ("count", "done", "users")

    def __init__(self, count: int) -> None:
        self.count, self.done = count, 0
        self.users: set[int] = set()


class Encoding:
    """The worker's cache of embeddings, by hash, as the scheduler keeps its books: at most ``capacity`` tokens.

    A pass through the encoder is cut into ``parts``; while answers are being decoded a step takes one of them, so that
    a large picture does not hold them up. What nobody reads any more is forgotten when room is needed, the least
    recently used first.
    """

    def __init__(self, capacity: int, parts: int) -> None:
        self.capacity = capacity
        self._parts = parts
        self._items: OrderedDict[bytes, Item] = OrderedDict()
        self._passed: list[tuple[Job, Media]] = []
        self._held = 0
        self._left = 0

    def begin_step(self, *, decoding: bool) -> None:
        self._left = 1 if decoding else -1
        for job, media in self._passed:
            self._let_go(job, media)
        self._passed.clear()

    def reach(self, job: Job, count: int, draft: Draft) -> int:
        """How many of the job's next ``count`` tokens can be computed in this step, encoding what it can for them."""
        start = job.planned
        for place, media in enumerate(job.request.media):
            if media.cross:
                job.table.cross_ready = job.table.cross_ready or self._prepare(job, place, media, draft)
                if not job.table.cross_ready:
                    return 0
            elif media.stop > start and media.start < start + count and not self._prepare(job, place, media, draft):
                return max(0, media.start - start)
        return count

    def _prepare(self, job: Job, place: int, media: Media, draft: Draft) -> bool:
        """Whether the embeddings will be there in this step."""
        item = self._items.get(media.hash)
        if item is None:
            if not self._left or not self._make_room(media.count, draft):
                return False
            item = self._items[media.hash] = Item(media.count)
            self._held += media.count
        item.users.add(job.request.id)
        self._items.move_to_end(media.hash)
        missing = self._parts - item.done
        parts = missing if self._left < 0 else min(missing, self._left)
        first, item.done = item.done, item.done + parts
        self._left -= parts if self._left > 0 else 0
        ready = item.done == self._parts
        if parts or (media.cross and ready):
            draft.encode(job, place, first, item.done)
        return ready

    def _make_room(self, count: int, draft: Draft) -> bool:
        idle = [hash for hash, item in self._items.items() if not item.users]
        if self._held - sum(self._items[hash].count for hash in idle) + count > self.capacity:
            return False
        for hash in idle:
            if self._held + count <= self.capacity:
                break
            self._held -= self._items.pop(hash).count
            draft.forget(hash)
        return True

    def pass_by(self, job: Job) -> None:
        """The job has planned all tokens up to ``planned``: after this step it needs no media before that any more."""
        self._passed += [(job, media) for media in job.request.media if media.cross or media.stop <= job.planned]

    def leave(self, job: Job) -> None:
        """The job is gone; it needs nothing any more."""
        for media in job.request.media:
            self._let_go(job, media)

    def _let_go(self, job: Job, media: Media) -> None:
        item = self._items.get(media.hash)
        if item is not None:
            item.users.discard(job.request.id)

    def forget(self) -> None:
        """The worker is gone, and all embeddings with it."""
        self._items.clear()
        self._passed.clear()
        self._held = 0
