"""The waiting requests: which is admitted next, which needs something first, which waits for another's blocks."""

from __future__ import annotations

import heapq

from lsv.request.request import Need
from lsv.scheduler.job import Job
from lsv.scheduler.policy import Key


class WaitingQueue:
    """All waiting jobs by request id. Those that can be admitted are queued by rank; the others block nobody.

    Seam: a request with ``needs`` (a grammar, an adapter) is queued once all of these are satisfied.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        # A heap. Jobs that have ended stay in it until they come up.
        self._queue: list[tuple[tuple[Key, int], Job]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job.request.id in self._jobs

    def add(self, job: Job) -> None:
        """A job waits, new or preempted; it is queued unless it needs something first."""
        self._jobs[job.request.id] = job
        if not job.request.needs:
            self._push(job)

    def _push(self, job: Job) -> None:
        heapq.heappush(self._queue, (job.rank, job))

    def head(self) -> Job | None:
        """The job to be admitted next."""
        while self._queue:
            job = self._queue[0][1]
            if not job.ended:
                return job
            heapq.heappop(self._queue)
        return None

    def park(self) -> None:
        """Take the head out of the queue; it goes on waiting, for blocks that another request computes."""
        heapq.heappop(self._queue)

    def unpark(self, id: int) -> None:
        """Queue a parked job again, if it is still waiting."""
        job = self._jobs.get(id)
        if job is not None:
            self._push(job)

    def satisfy(self, id: int, need: Need) -> None:
        """A waiting job got what it needs; ignored for jobs that don't need it."""
        job = self._jobs.get(id)
        if job is None or need not in job.request.needs:
            return
        job.request.needs.discard(need)
        if not job.request.needs:
            self._push(job)

    def pop(self) -> None:
        """The head is admitted."""
        job = heapq.heappop(self._queue)[1]
        del self._jobs[job.request.id]

    def remove(self, job: Job) -> None:
        """The job has ended."""
        del self._jobs[job.request.id]
