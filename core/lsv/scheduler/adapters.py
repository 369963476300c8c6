"""The adapters in the worker's slots, their users, and the groups that wait for a slot."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from lsv.scheduler.job import Group, Job
from lsv.scheduler.outcome import AdapterRequests
from lsv.scheduler.plan import Enter


def requests_of(groups: Iterable[Group]) -> AdapterRequests:
    """The adapters of requests that have not ended."""
    running: set[str] = set()
    waiting: set[str] = set()
    for group in groups:
        if group.asked.spec.adapter:  # it may have to be loaded first
            runs = any(job.adapter is not None for job in group.jobs.values())
            (running if runs else waiting).add(group.asked.spec.adapter)
    return AdapterRequests(tuple(sorted(running)), tuple(sorted(waiting)))


class ResidentAdapters:
    """The adapters in ``count`` slots, by the running jobs that use them.

    An adapter stays in its slot until another one needs that; of those that nobody uses, the one that was used least
    recently goes first. A group whose adapter finds no slot is parked, and blocks nobody. While groups are parked,
    further jobs of the adapters in the slots may overtake them, but no more than ``patience``: then those are parked,
    too, until a slot is free, and all of them stand in line again in their old order. So every adapter has its turn.
    """

    def __init__(self, count: int, *, patience: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._slots: OrderedDict[int, int] = OrderedDict()  # adapter -> slot, the least recently used first
        self._users: dict[int, int] = {}
        self._parked: list[int] = []
        self._released = False
        self._patience = patience
        self._overtaken = 0

    def has_room(self, job: Job) -> bool:
        """Whether a waiting job's adapter can be in a slot now; otherwise the job's group is to be parked."""
        adapter = job.request.adapter
        if adapter is None:
            return True
        if self._parked:
            room = adapter.id in self._users and self._overtaken < self._patience
        else:
            room = adapter.id in self._slots or bool(self._free) or len(self._users) < len(self._slots)
        if not room:
            self._parked.append(job.group.id)
        return room

    def enter(self, job: Job) -> Iterable[Enter]:
        """Admit a job for which there is room; returns its adapter if that must enter a slot."""
        adapter = job.request.adapter
        assert adapter is not None, "the job has no adapter"
        self._overtaken += bool(self._parked)
        known = self._slots.get(adapter.id)
        if known is None:
            job.adapter = self._slots[adapter.id] = self._take_slot()
        else:
            job.adapter = known
        self._slots.move_to_end(adapter.id)
        self._users[adapter.id] = self._users.get(adapter.id, 0) + 1
        return () if known is not None else (Enter(job.adapter, adapter.id),)

    def leave(self, job: Job) -> None:
        """Release the adapter of a job that has left the batch and has no rows in flight."""
        adapter = job.request.adapter
        assert adapter is not None, "the job has no adapter"
        job.adapter = None
        self._users[adapter.id] -= 1
        if not self._users[adapter.id]:
            del self._users[adapter.id]
            self._released = True

    def take_unparked(self) -> list[int]:
        """The groups that may stand in line again because a slot has become free."""
        if not (self._released and self._parked):
            return []
        parked, self._parked = self._parked, []
        self._released, self._overtaken = False, 0
        return parked

    def _take_slot(self) -> int:
        """A free slot, or the slot of the least recently used adapter."""
        if self._free:
            return self._free.pop()
        unused = next(id for id in self._slots if id not in self._users)
        return self._slots.pop(unused)
