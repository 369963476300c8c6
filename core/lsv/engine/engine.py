"""The engine: scheduler and executor, stepped together. A plain object without I/O or a clock of its own."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import Executor, ReportProgress
from lsv.engine.messages import Finish, Stats, Submit, Update
from lsv.engine.open_requests import OpenRequests, Owner, make_group
from lsv.engine.orders.table import make_table
from lsv.engine.parts import Parts
from lsv.engine.parts.part import Host, Part
from lsv.engine.report import ItlLog, PreemptionLog
from lsv.engine.scheduling import make_cache, make_scheduler, open_exchange
from lsv.engine.step_totals import StepTotals
from lsv.kv.manager import KVManager
from lsv.scheduler.plan import StepPlan
from lsv.scheduler.policy import Policy
from lsv.scheduler.scheduler import Scheduler
from lsv.transports.exchange import Exchange
from lsv_base.errors import EngineDied, LsvError, Overloaded
from lsv_base.processes.orders import WorkerOrder

log = logging.getLogger(__name__)

_PART_WAIT = 0.005
"""Seconds that a step with nothing else to do waits for a part."""


class Engine(Generic[Owner]):
    """Runs the requests of any number of owners; an owner names its requests by numbers of its own.

    ``start`` first, then ``submit`` and ``step``. After ``step`` or ``start`` has raised ``EngineDied`` the engine
    can't be used any more, and ``failure`` holds the error. ``stalled`` says that the last step found nothing to do.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        policy: Policy,
        *,
        parts: Callable[[Host], Sequence[Part]] = lambda host: (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``parts`` makes what takes part in the engine, see ``lsv.engine.parts.made``."""
        self.config = config
        self.now = now
        self.stalled = False
        self.failure: EngineDied | None = None
        self.exchange: Exchange | None = None
        self._executor = executor
        self._policy = policy
        self._scheduler: Scheduler | None = None
        self.parts = Parts(parts(self))
        self.orders = make_table(self.parts.all, lambda: self.scheduler.reset_prefix_cache())
        self._open: OpenRequests[Owner] = OpenRequests(self.parts)
        self._in_flight: deque[StepPlan] = deque()
        self._submitted = self._rejected = 0
        self._preemptions = PreemptionLog()
        self._itl = ItlLog(config.max_itl_ms)
        self._totals = StepTotals()

    def start(self, progress: ReportProgress) -> Fit:
        """Load the model; raises ``StartError``."""
        self.exchange = open_exchange(self.config)
        fit = self._executor.start(self.config, progress)
        self.kv: KVManager = make_cache(self.config, fit, self.exchange)
        self._scheduler = make_scheduler(self.config, fit, self.kv, self._executor.depth, self._policy)
        fit = msgspec.structs.replace(fit, max_model_len=self._scheduler.longest)
        for part in self.parts.all:
            part.start(fit)
        return fit

    def close(self) -> None:
        """Stop the workers; requests that still run are lost."""
        self._executor.stop()
        for part in self.parts.all:
            part.stop()
        if self.exchange is not None:
            self.exchange.close()
        self._scheduler = None

    @property
    def scheduler(self) -> Scheduler:
        assert self._scheduler is not None, "the engine has not been started"
        return self._scheduler

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._in_flight) or self._open.have_news or self.parts.busy

    @property
    def stats(self) -> Stats:
        if self._scheduler is None:
            return Stats()
        stats = self._totals.make_stats(self._scheduler, rejected=self._rejected, parts=self.parts.counters)
        return self.parts.complete(stats)

    # Requests

    def submit(self, owner: Owner, message: Submit) -> None:
        """Queue a request. Raises ``BadRequest``, ``Overloaded`` or, after a failure, ``EngineDied``."""
        if self.failure is not None:
            raise self.failure
        group = make_group(self._submitted, message, self.config, self.now())
        self._submitted += message.spec.width  # whatever becomes of it: parts that wait know the group by its number
        try:
            self.scheduler.check_request(group.spec)
            self.scheduler.add(self.parts.open(group), group.arrival)
        except LsvError as error:
            self._rejected += isinstance(error, Overloaded)
            self.parts.close(group.id)
            raise
        self._open.open(owner, message.id, group)
        log.debug("req=%s queued: %d prompt tokens", message.spec.request_id, len(message.spec.prompt.ids))

    def abort(self, owner: Owner, ids: Iterable[int]) -> None:
        """Abort requests; their owner gets no more updates of them. Unknown ids are ignored."""
        known = {group for id in ids if (group := self._open.find(owner, id)) is not None}
        if known:
            self._open.abort(known, self.scheduler.abort(known))

    def abort_all(self, owner: Owner) -> None:
        """Abort all requests of an owner that is gone."""
        self.abort(owner, self._open.ids_of(owner))

    def finish(self, owner: Owner, message: Finish) -> None:
        """End an answer where its owner has found its end; there are no more updates of it."""
        number = self._open.find(owner, message.id)
        if number is None:
            return
        outcome = self.scheduler.finish(number + message.index, message.keep, message.reason)
        if outcome is not None:
            self._open.end(outcome.request)

    # Orders

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        """Have every worker carry out an order once what is in flight has settled. Raises what refuses it."""
        self._settle_all()
        return self._executor.control(order)

    def watch(self, around: Callable[[Executor], Executor]) -> None:
        """Put something around the executor, or take it away again."""
        self._settle_all()
        self._executor = around(self._executor)

    def refuse_all(self, error: LsvError) -> None:
        """End all requests with an error, of which their owners hear with the next step."""
        for group in self._open.groups:
            for outcome in self.scheduler.refuse(group, error.message):
                self._open.take(outcome, error)

    def save_cached(self) -> None:
        """Step until host memory and stores have what is to be copied to them."""
        self._settle_all()
        self._plan_ahead(self.now())
        self._settle_all()

    def forget_cached(self, *, host: bool) -> None:
        """Empty the books of what workers cache; with ``host`` also of host memory. No request may be open."""
        self._settle_all()
        for part in self.parts.interrupted:
            part.interrupt()
        self.scheduler.forget_cached(host=host)

    def note_computed(self, group: int, tokens: int) -> None:
        """Tell the owner of a request that so many tokens were computed for it, though its answers have not grown."""
        self._open.note_computed(group, tokens)

    # Steps

    def check(self) -> None:
        """Look after the workers between steps. Raises ``EngineDied`` when one is gone; requests have ended then."""
        try:
            self._executor.check()
        except EngineDied as error:
            self._fail_all(error)
            raise

    def step(self) -> dict[Owner, list[Update]]:
        """Plan as far ahead as the executor goes, wait for the oldest result, and return the updates by owner.

        Raises ``EngineDied`` when the workers are gone; all requests have ended then.
        """
        began = self.now()
        for outcome in self.scheduler.expire(began):
            self._open.take(outcome)
        if self.stalled and not self._in_flight:
            for part in self.parts.waiting:
                part.wait(_PART_WAIT)
        self.advance()
        try:
            self._plan_ahead(began)
            self.stalled = not self._in_flight
            if self._in_flight:
                self._settle_oldest(began)
        except EngineDied as error:
            self._fail_all(error)
            raise
        return self._open.take_updates()

    def advance(self) -> None:
        """Have the parts go on with what they have begun, and let requests through that need not wait any longer."""
        for part in self.parts.resuming:
            for outcome in part.resume():
                self._open.publish(outcome)
        for part in self.parts.releasing:
            for group, error in part.ready():
                if error is None:
                    self.scheduler.satisfy(group, part.name)
                    continue
                for outcome in self.scheduler.refuse(group, error.message):
                    self._open.take(outcome, error)

    def _plan_ahead(self, now: float) -> None:
        pacing, masking = self.parts.pacing, self.parts.masking
        while True:
            plan = self.scheduler.plan(now, needed=bool(pacing) and any(part.needs_step for part in pacing))
            if plan is None:
                break
            for part in self.parts.stepping:
                part.before_step(self._totals.steps + len(self._in_flight))
            if plan.masked and masking is not None:
                self._executor.submit(plan, masking.mask(self.scheduler.guided))
            else:
                self._executor.submit(plan)
            self._in_flight.append(plan)
        self._preemptions.tell(self.scheduler.preempted, self.scheduler.preemptions)

    def _settle_all(self) -> None:
        while self._in_flight:
            self._settle_oldest(self.now())

    def _settle_oldest(self, began: float) -> None:
        result = self._executor.collect(self.config.step_timeout)
        now, plan = self.now(), self._in_flight.popleft()
        for outcome in self.scheduler.settle(plan, result, now):
            self._open.take(outcome)
        self._totals.add(plan, result, now - began)
        self._itl.tell(self.scheduler.too_slow)

    def _fail_all(self, error: EngineDied) -> None:
        log.error("the engine can't go on: %s", error.message)
        self.failure = error
        self._open.fail(self.scheduler.fail_all(error.message))
        self._in_flight.clear()
