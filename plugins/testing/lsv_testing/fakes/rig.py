"""A scheduler and a fake worker put together, stepped by hand or run until nothing is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup
from lsv.kv.tiers.tiers import Tiers
from lsv.request.params import SamplingParams
from lsv.request.request import Request
from lsv.scheduler.limits import Limits
from lsv.scheduler.outcome import Outcome
from lsv.scheduler.plan import StepPlan
from lsv.scheduler.policy import Fcfs, Policy
from lsv.scheduler.scheduler import Scheduler
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.requests import GivenGroup, make_request
from lsv_testing.fakes.tiers import FakeKeeper
from lsv_testing.fakes.worker import NOT_FINITE, Draft, FakeWorker

FULL = (KVGroup(0, "full", (0,), 1),)


class Rig:
    """Plans, submits and settles like an engine, checks the scheduler after every call, and keeps plans and news."""

    def __init__(
        self,
        *,
        groups: Sequence[KVGroup] = FULL,
        num_blocks: int = 64,
        block_size: int = 4,
        prefix_caching: bool = True,
        policy: Policy | None = None,
        limits: Limits | None = None,
        draft: Draft = lambda slot, most: (),
        cells: int | None = None,
        keeper: FakeKeeper | None = None,
    ) -> None:
        self.limits = limits or Limits(max_num_seqs=8, max_num_batched_tokens=32, max_model_len=128)
        self.clock = FakeClock()
        tiers = None if cells is None else Tiers(cells, keeper)
        self.kv = KVManager(groups, num_blocks, block_size, root=b"test", prefix_caching=prefix_caching, tiers=tiers)
        self.scheduler = Scheduler(self.limits, self.kv, policy or Fcfs())
        self.worker = FakeWorker(self.limits, groups, num_blocks, block_size, draft, keeper)
        self.plans: list[StepPlan] = []
        self.news: dict[int, list[Outcome]] = {}
        self._in_flight: deque[StepPlan] = deque()

    def add(self, request: Request) -> Request:
        self.scheduler.add(GivenGroup(request), self.clock())
        return request

    def ask(self, id: int, prompt: Sequence[int], max_tokens: int = 8, *, priority: int = 0) -> Request:
        """Add a plain greedy request that arrives now."""
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        return self.add(make_request(id, tuple(prompt), sampling=sampling, priority=priority, arrival=self.clock()))

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan(self.clock())
        self.scheduler.check()
        if plan is not None:
            self.plans.append(plan)
            self._in_flight.append(plan)
            self.worker.submit(plan)
        return plan

    def settle(self) -> tuple[Outcome, ...]:
        """Take in the oldest result in flight."""
        plan = self._in_flight.popleft()
        outcomes = self.scheduler.settle(plan, self.worker.collect(0.0), self.clock())
        self._check_revoked(outcomes)
        self.note(outcomes)
        return outcomes

    def _check_revoked(self, outcomes: Sequence[Outcome]) -> None:
        """No other request finds blocks that a failed row read or wrote."""
        for request in [one.request for one in outcomes if one.error == NOT_FINITE]:
            ids, sampling = (*request.prompt, *request.output, 0), SamplingParams()
            whole = make_request(0, ids, sampling=sampling, salt=request.salt, media=request.media)
            assert self.kv.missing(whole) == self.kv.names(whole), f"blocks of request {request.id} can still be found"

    def note(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.news.setdefault(outcome.request.id, []).append(outcome)
        self.scheduler.check()

    def step(self) -> tuple[Outcome, ...]:
        """Plan as far ahead as the depth allows, then settle one step."""
        while self.plan() is not None:
            pass
        self.clock.advance(1.0)
        return self.settle() if self._in_flight else ()

    def run(self, each: Callable[[], None] = lambda: None, most: int = 10_000) -> None:
        """Step until nothing is in flight and nothing can be planned; ``each`` is called between the steps."""
        for _ in range(most):
            each()
            self.step()
            if not self._in_flight and not self.scheduler.has_work:
                return
        raise AssertionError(f"not finished after {most} steps: {self.scheduler.counts}")

    def ask_failed_again(self, requests: Sequence[Request], spoilt: int) -> None:
        """Each of ``spoilt`` corrupt contents fails at most one request before it is revoked."""
        failed = [one for one in requests if self.news[one.id][-1].error == NOT_FINITE]
        id = max((one.id for one in requests), default=0)
        for request in failed:
            for _ in range(spoilt + 1):
                id += 1
                self.ask(id, request.prompt, 2)
                self.run()
                if self.news[id][-1].error is None:
                    break
            else:
                raise AssertionError(f"request {request.id} fails whenever it is asked again")

    def tokens(self, id: int) -> list[int]:
        """All tokens that were reported for a request."""
        return [token for outcome in self.news[id] for token in outcome.tokens]
