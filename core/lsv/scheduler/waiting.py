"""The waiting requests: the next one to admit, those that need something first, and those that wait for blocks."""

from __future__ import annotations

import heapq
import itertools

from lsv.request.request import Need
from lsv.scheduler.job import Group, Job, OpenJob, Place
from lsv.scheduler.policy import Key

_SPARE = 16
"""Dead entries that a line may hold without being compacted."""


class WaitingQueue:
    """A line for each tenant, of the groups that have sequences to admit.

    Within a tenant's line the policy's key comes first, then the order of arrival. Between tenants the policy's key
    between tenants comes first; of those whose heads have equal ones, the tenant that has been served least is next.
    Groups that wait for something else are in no line and do not block other groups.
    A group with ``needs`` (a grammar that is compiled) enters its line once all of these are satisfied.
    """

    def __init__(self, open_job: OpenJob) -> None:
        self._open_job = open_job
        self._groups: dict[int, Group] = {}
        self._lines: dict[str, _Line] = {}
        self._sequences = 0

    def __len__(self) -> int:
        """Sequences that wait."""
        return self._sequences

    @property
    def deferred(self) -> int:
        """Groups that wait, but in no line."""
        return sum(line.groups - line.standing for line in self._lines.values())

    def count_tokens(self, most: int) -> int:
        """Tokens of waiting prompts, counted up to ``most``. Some of them may be cached."""
        found = 0
        for group in self._groups.values():
            found += len(group.asked.spec.prompt.ids) * max(1, group.unmade)
            if found >= most:
                break
        return found

    def groups_of(self, tenant: str) -> int:
        """A tenant's groups that have sequences waiting."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.groups

    def add(self, group: Group) -> None:
        """Queue a new group."""
        self._sequences += group.asked.size
        self._enter(group)

    def requeue(self, job: Job) -> None:
        """Queue a preempted job again."""
        self._sequences += 1
        job.group.put_back(job)
        self._enter(job.group)

    def head(self) -> Job | None:
        """The job to be admitted next."""
        found: Group | None = None
        for line in self._lines.values():
            group = line.first()
            if group is not None and (found is None or _goes_before(group, found)):
                found = group
        return None if found is None else found.next_job(self._open_job)

    def pop(self, job: Job) -> None:
        """Remove the head, which is admitted."""
        job.group.take()
        self._sequences -= 1
        self._update(job.group)

    def park(self, job: Job) -> None:
        """Take the head's group out of line until another request has computed the blocks it needs."""
        self._lines[job.tenant.name].withdraw(job.group)

    def unpark(self, id: int) -> None:
        """Put a parked group back in line; ignored if none of its sequences wait any more."""
        if id in self._groups:
            self._update(self._groups[id])

    def satisfy(self, id: int, need: Need) -> None:
        """Record that a waiting group got what it needs; ignored for groups that don't need it."""
        group = self._groups.get(id)
        if group is not None and need in group.asked.needs:
            group.asked.needs.discard(need)
            self._update(group)

    def on_ended(self, group: Group, sequences: int) -> None:
        """Forget ``sequences`` waiting sequences of a group, which have ended."""
        self._sequences -= sequences
        self._update(group)

    def _enter(self, group: Group) -> None:
        if group.id not in self._groups:
            self._groups[group.id] = group
            self._lines.setdefault(group.tenant.name, _Line()).groups += 1
        self._update(group)

    def _update(self, group: Group) -> None:
        """Move a group to the place of its next sequence, or remove it if none waits."""
        if group.id not in self._groups:
            return
        line, place = self._lines[group.tenant.name], group.next_place
        if place is not None:
            if not group.asked.needs:
                line.put(group, place)
            return
        del self._groups[group.id]
        line.withdraw(group)
        line.groups -= 1
        if not line.groups:
            del self._lines[group.tenant.name]


_Entry = tuple[Place, int, Group]
"""A group at a place. The number distinguishes entries with equal places."""


class _Line:
    """A tenant's groups by place. Outdated entries of a group are dropped when they come up."""

    def __init__(self) -> None:
        self.groups = 0
        """Groups of the tenant that wait, in line or not."""
        self._heap: list[_Entry] = []
        self._entries: dict[int, _Entry] = {}
        self._serials = itertools.count()

    @property
    def standing(self) -> int:
        """Groups in line."""
        return len(self._entries)

    def put(self, group: Group, place: Place) -> None:
        """Put the group at ``place``, wherever it was before."""
        known = self._entries.get(group.id)
        if known is None or known[0] != place:
            entry = self._entries[group.id] = (place, next(self._serials), group)
            heapq.heappush(self._heap, entry)
            self._compact()

    def withdraw(self, group: Group) -> None:
        if self._entries.pop(group.id, None) is not None:
            self._compact()

    def first(self) -> Group | None:
        while self._heap and self._entries.get(self._heap[0][2].id) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _compact(self) -> None:
        """Drop dead entries, which would pile up while the head can't be admitted."""
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)


def _goes_before(group: Group, other: Group) -> bool:
    """Whether ``group`` goes before ``other``; both are heads of their tenants' lines."""
    return _urgency(group) < _urgency(other)


def _urgency(group: Group) -> tuple[Key, float, int, float]:
    """The order between tenants. If they were served equally, the tenant that holds less is next."""
    return group.key_between_tenants, group.tenant.served, group.tenant.running, group.asked.arrival
