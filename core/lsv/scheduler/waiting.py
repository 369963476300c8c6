"""The one waiting room: who may enter next, who lacks something, who waits for another's blocks."""

from __future__ import annotations

import heapq

from lsv.request.request import Need
from lsv.scheduler.job import Job
from lsv.scheduler.policy import Key


class WaitingRoom:
    """All waiting jobs by request id; those that could be admitted stand in line by rank, the others block nobody."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        # Jobs that left stay in the heap until they come up.
        self._line: list[tuple[tuple[Key, int], Job]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job.request.id in self._jobs

    def add(self, job: Job) -> None:
        """A job enters, new or preempted; it stands in line unless it needs something first."""
        self._jobs[job.request.id] = job
        if not job.request.needs:
            self._stand(job)

    def _stand(self, job: Job) -> None:
        heapq.heappush(self._line, (job.rank, job))

    def head(self) -> Job | None:
        """The first in line."""
        while self._line:
            job = self._line[0][1]
            if not job.ended:
                return job
            heapq.heappop(self._line)
        return None

    def park(self) -> Job:
        """Take the head out of the line; it goes on waiting, for blocks that another request computes."""
        return heapq.heappop(self._line)[1]

    def unpark(self, id: int) -> None:
        """A parked job stands in line again, if it is still waiting."""
        job = self._jobs.get(id)
        if job is not None:
            self._stand(job)

    def satisfy(self, id: int, need: Need) -> None:
        """A waiting job got what it needs; nothing happens to others."""
        job = self._jobs.get(id)
        if job is None or need not in job.request.needs:
            return
        job.request.needs.discard(need)
        if not job.request.needs:
            self._stand(job)

    def admit(self) -> Job:
        """Let the head out to run."""
        job = heapq.heappop(self._line)[1]
        del self._jobs[job.request.id]
        return job

    def remove(self, job: Job) -> None:
        """An ended job leaves."""
        del self._jobs[job.request.id]
