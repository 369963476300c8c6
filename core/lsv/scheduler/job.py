"""Request groups under way, and the jobs of their sequences, as the scheduler sees them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from lsv.kv.table import Table
from lsv.request.group import RequestGroup
from lsv.request.request import FinishReason, Request
from lsv.scheduler.drafts.drafting import Drafting
from lsv.scheduler.plan import Logprobs, cut_logprobs
from lsv.scheduler.policy import Key, Policy
from lsv.scheduler.repetition import Repetition
from lsv.scheduler.tenant import Tenant

Place = tuple[Key, int, int]
"""A place in line: the policy's key, the place in the tenant's line, and the group's number."""


class Job:
    """What the scheduler knows of one sequence beyond the request itself; all lengths are in tokens.

    ``planned`` chases the tokens that are known, and beyond these those that steps in flight will have sampled:
    chunked prefill, prefix hits and preemption only set where it starts and how far it goes at a time.
    """

    __slots__ = (
        "active", "adapter", "drafting", "ended", "group", "guided", "held", "in_flight", "known", "lost", "max_length",
        "max_output", "max_planned", "min_output", "next_kv_check", "place", "plannable", "planned", "repetition",
        "request", "scored", "slot", "stop_ids", "table", "tenant", "waits",
    )  # fmt: skip

    def __init__(self, group: Group, request: Request, table: Table, longest: int) -> None:
        sampling, size = request.sampling, len(request.prompt)
        self.group = group
        self.tenant = group.tenant
        self.place = group.place_of(request.index)
        self.request = request
        self.table = table
        self.slot = -1
        """The worker's slot; -1 outside the running batch."""
        self.adapter: int | None = None
        """The slot of its adapter, while it has one."""
        self.active = False
        """Whether rows may be planned for it. When this turns false, rows can still be in flight."""
        self.ended = False
        """Whether the request has ended: results of its rows in flight are dropped."""
        self.lost = False
        """Whether loading its blocks failed. Its results are dropped, and it starts again."""
        self.in_flight = 0
        """Its rows, pieces of encoding and its beginning in plans that have not settled."""

        self.guided = request.spec.guided
        """Whether a grammar constrains its answer."""
        self.held = False
        """Whether no rows may be planned, because the slow lane follows its answer."""
        self.waits = self.guided
        """Whether its rows wait until the token before is known: a grammar must see it, drafts go on from it, or other
        rows are to be computed meanwhile."""
        self.drafting: Drafting | None = None
        """Its drafts and their success; None if it has no drafts."""

        # Progress

        self.planned = 0
        """Tokens that are computed or in flight."""
        self.known = 0
        """Tokens whose ids were known at admission: the prompt, and the output from before a preemption.

        Each further token is sampled by the row before it.
        """
        self.plannable = 0
        """While decoding: how far ``planned`` may go before the job's blocks or its end must be looked at."""
        self.next_kv_check = 0
        """The count of computed tokens from which on the KV manager has something to do for the table."""
        self.scored = 0
        """Prompt tokens whose log probabilities have been delivered."""

        # Limits

        self.max_length = size if sampling is None else min(longest, size + (sampling.max_tokens or longest))
        """The most tokens of prompt and output together."""
        self.max_planned = size if sampling is None else self.max_length - 1
        """The most tokens that are ever computed: the last one of an answer is not."""
        self.max_output = self.max_length - size
        self.min_output = 0 if sampling is None else sampling.min_tokens
        self.stop_ids = frozenset(request.stop_ids)
        asked = None if sampling is None else sampling.repetition_detection
        self.repetition = None if asked is None else Repetition(asked)
        """Detects repetition, if repetition ends the answer."""

    def update_plannable(self) -> None:
        """Update how many tokens its blocks and its end allow."""
        self.plannable = min(self.max_planned, self.table.capacity)

    @property
    def max_cached(self) -> int:
        """How many tokens may come from the prefix cache. One must be computed, and all that still need scores."""
        sampling, pooling, known = self.request.sampling, self.request.pooling, len(self.request)
        if pooling is not None and pooling.needs_all:
            return 0
        if sampling is not None and sampling.prompt_logprobs is not None:
            to_score = len(self.request.prompt) - 1
            return self.scored if self.scored < to_score else known - 1
        return known - 1

    def take_scores(self, start: int, scores: Logprobs | None) -> Logprobs | None:
        """The part of ``scores``, which begin at ``start + 1``, that was not delivered before a preemption."""
        if scores is None:
            return None
        known = self.scored - start
        self.scored = max(self.scored, start + len(scores.ids))
        return cut_logprobs(scores, slice(known, None)) if known > 0 else scores

    def accept(self, tokens: tuple[int, ...]) -> tuple[int, FinishReason | None]:
        """Append sampled tokens up to the one that ends the answer; returns how many those were, and how it ended."""
        output = self.request.output
        for taken, token in enumerate(tokens, 1):
            output.append(token)
            repeats = self.repetition is not None and self.repetition.add(token)
            if token in self.stop_ids and len(output) >= self.min_output:
                return taken, FinishReason.STOP
            if len(output) >= self.max_output:
                return taken, FinishReason.LENGTH
            if repeats and len(output) >= self.min_output:
                return taken, FinishReason.REPETITION
        return len(tokens), None

    def user_stop(self, token: int) -> int | None:
        """``token`` if the user named it as a stop, None for eos."""
        sampling = self.request.sampling
        return token if sampling is not None and token in sampling.stop_token_ids else None


class Group:
    """Stands in its tenant's line as one.

    Sequence ``i`` of a group has the place that a request would have that came ``i`` requests later: the sequences of a
    large group and the requests behind it take turns.
    """

    __slots__ = ("_made", "_waiting", "asked", "jobs", "key", "key_between_tenants", "place", "tenant")

    def __init__(self, asked: RequestGroup, tenant: Tenant, policy: Policy, now: float) -> None:
        self.asked = asked
        self.tenant = tenant
        self.key = policy.key(asked, now)
        """The policy's key among the tenant's groups."""
        self.key_between_tenants = policy.key_between_tenants(asked, now)
        """The policy's key against groups of other tenants."""
        self.place = tenant.arrived
        """Its place in the tenant's line."""
        self.jobs: dict[int, Job] = {}
        """The jobs of its unfinished sequences, by request id."""
        self._made = 0
        self._waiting: list[tuple[int, Job]] = []  # a heap by index: jobs that wait (again); some may have ended

    @property
    def id(self) -> int:
        return self.asked.id

    @property
    def ended(self) -> bool:
        """Whether all of its sequences have ended."""
        return not self.jobs and self._made == self.asked.size

    @property
    def unmade(self) -> int:
        """Sequences without a job so far."""
        return self.asked.size - self._made

    @property
    def next_place(self) -> Place | None:
        """The place of the next sequence; None if none waits."""
        index = self._next_index()
        return None if index is None else self.place_of(index)

    def place_of(self, index: int) -> Place:
        return self.key, self.place + index, self.place

    def next_job(self, open_job: Callable[[Group, Request], Job]) -> Job:
        """The job of the next sequence, created only now so that waiting sequences cost nothing."""
        index = self._next_index()
        assert index is not None, "no sequence of the group waits"
        if not self._waiting:
            request = self._make()
            job = self.jobs[request.id] = open_job(self, request)
            self._waiting.append((index, job))
        return self._waiting[0][1]

    def take(self) -> None:
        """Remove the next sequence, which is admitted."""
        heapq.heappop(self._waiting)

    def put_back(self, job: Job) -> None:
        """Queue an admitted sequence again."""
        heapq.heappush(self._waiting, (job.request.index, job))

    def renew(self, asked: RequestGroup) -> None:
        """Start the next round: the sequences of ``asked`` replace the ended ones."""
        assert self.ended, "sequences of the round before are under way"
        self.asked = asked
        self._made = 0
        self._waiting.clear()

    def drop_unmade(self) -> list[Request]:
        """Drop and return the sequences without a job."""
        return [self._make() for _ in range(self.unmade)]

    def _next_index(self) -> int | None:
        while self._waiting and self._waiting[0][1].ended:
            heapq.heappop(self._waiting)
        if self._waiting:
            return self._waiting[0][0]
        return self._made if self.unmade else None

    def _make(self) -> Request:
        self._made += 1
        return self.asked.make(self._made - 1)


OpenJob = Callable[[Group, Request], Job]
"""Creates the job of a sequence."""
