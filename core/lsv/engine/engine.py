"""The engine: scheduler and executor, stepped together. A plain object without I/O or a clock of its own."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic

import msgspec

from lsv.adapters.registry import AdapterRegistry
from lsv.beams.rounds import BeamSearches
from lsv.config import EngineConfig, Fit
from lsv.engine.executor import Executor, ReportProgress
from lsv.engine.messages import STEP_TOKENS, Finish, Stats, Submit, Update
from lsv.engine.orders.sleep import SleepState
from lsv.engine.orders.table import make_table
from lsv.engine.parts import Parts
from lsv.engine.parts.adapters import AdaptersPart
from lsv.engine.parts.experts import ExpertBalance
from lsv.engine.parts.part import Part, PartContext
from lsv.engine.parts.profiles import ProfilesPart
from lsv.engine.parts.transfers import TransfersPart
from lsv.engine.replicas.rhythm import Rhythm
from lsv.engine.report import ItlLog, PreemptionLog
from lsv.engine.scheduling import make_cache, make_scheduler
from lsv.engine.updates import OpenRequest, Outgoing, Owner, make_count, make_group, make_update
from lsv.errors import BadRequest, EngineDied, LsvError, Overloaded, Unavailable
from lsv.grammars.guide import Guide
from lsv.processes.orders import WorkerOrder
from lsv.request.group import RequestGroup
from lsv.request.request import Need, Request
from lsv.scheduler.outcome import Outcome
from lsv.scheduler.plan import StepPlan
from lsv.scheduler.policy import Policy
from lsv.scheduler.scheduler import Scheduler
from lsv.transports.fetches import Fetches

log = logging.getLogger(__name__)

_GRAMMAR_WAIT = 0.005
"""Seconds that a step with nothing else to do waits for a grammar."""


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
        guide: Guide | None = None,
        rhythm: Rhythm | None = None,
        parts: Callable[[PartContext], Sequence[Part]] = lambda context: (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a ``guide``, the engine refuses structured outputs. ``rhythm`` keeps replicas in lock-step.

        ``parts`` makes further parts; they come after the engine's own.
        """
        self.config = config
        self.rhythm = rhythm
        self.stalled = False
        self.failure: EngineDied | None = None
        self._executor = executor
        self._policy = policy
        self._guide = guide
        self._now = now
        self._searches = BeamSearches(config)
        self._fetches = Fetches(config)
        self.adapters = AdapterRegistry(config, self.control, lambda: self._started.adapters)
        self.sleep = SleepState(config, self.control, forget=self._forget_cached, refuse_all=self.refuse_all)
        self._experts = ExpertBalance(config, self.control)
        own = (
            AdaptersPart(self.adapters),
            TransfersPart(self._fetches, lambda: self._kv),
            ProfilesPart(config, self.control),
            *(() if self._experts.counts is None else (self._experts,)),
        )
        self._parts = Parts((*own, *parts(PartContext(config, self.control, now))))
        self.orders = make_table(self.sleep, lambda: self._started.reset_prefix_cache())
        for part in self._parts.all:
            self.orders.add(part.orders)
        self._scheduler: Scheduler | None = None
        self._open: dict[int, OpenRequest[Owner]] = {}
        self._ids: dict[tuple[Owner, int], int] = {}
        self._updates: Outgoing[Owner] = Outgoing()
        self._in_flight: deque[StepPlan] = deque()
        self._submitted = 0
        self._preemptions = PreemptionLog()
        self._itl = ItlLog(config.max_itl_ms)
        self._steps = self._broken = self._nonfinite = self._unwarmed = self._rejected = self._tokens = 0
        self._step_seconds = self._model_seconds = 0.0
        self._step_tokens = [0] * (len(STEP_TOKENS) + 1)

    def start(self, progress: ReportProgress) -> Fit:
        """Load the model; raises ``StartError``."""
        exchange = self._fetches.start()
        fit = self._executor.start(self.config, progress)
        self._kv = make_cache(self.config, fit, exchange)
        self._scheduler = make_scheduler(self.config, fit, self._kv, self._executor.depth, self._policy)
        if self._guide is not None:
            self._guide.start(fit.vocab_size)
        self._searches.start(fit.vocab_size, self._scheduler.longest)
        for part in self._parts.all:
            part.start(fit)
        return msgspec.structs.replace(fit, max_model_len=self._scheduler.longest)

    def close(self) -> None:
        """Stop the workers; requests that still run are lost."""
        self._executor.stop()
        for part in self._parts.all:
            part.stop()
        if self.rhythm is not None:
            self.rhythm.close()
        if self._guide is not None:
            self._guide.stop()
        self._scheduler = None

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def has_work(self) -> bool:
        busy = self._started.has_work or bool(self._in_flight) or bool(self._updates) or self._parts.busy
        return busy or (self.rhythm is not None and self.rhythm.behind)

    @property
    def stats(self) -> Stats:
        if self._scheduler is None:
            return Stats()
        counts = self._scheduler.counts
        return Stats(
            running=counts.running,
            waiting=counts.waiting,
            deferred=counts.deferred,
            kv_usage=counts.kv_usage,
            preemptions_total=counts.preemptions,
            rejections_total=self._rejected,
            prompt_tokens_total=counts.prompt_tokens,
            generation_tokens_total=counts.generation_tokens,
            prefix_queries_total=counts.prefix_queries,
            prefix_hits_total=counts.prefix_hits,
            nonfinite_total=self._nonfinite,
            unwarmed_total=self._unwarmed,
            steps_total=self._steps,
            tokens_total=self._tokens,
            step_tokens=tuple(self._step_tokens),
            failed_steps_total=self._broken,
            step_seconds_total=self._step_seconds,
            model_seconds_total=self._model_seconds,
            speculation=self._scheduler.speculation,
            adapters=self._scheduler.adapter_requests,
            offload=self._fetches.counted(self._scheduler.offload),
            experts=self._experts.counts,
            parts=self._parts.counters(),
        )

    def submit(self, owner: Owner, message: Submit) -> None:
        """Queue a request. Raises ``BadRequest``, ``Overloaded`` or, after a failure, ``EngineDied``."""
        if self.failure is not None:
            raise self.failure
        self.sleep.check_awake()
        assert (owner, message.id) not in self._ids, f"request {message.id} is known"
        group = make_group(self._submitted, message, self.config, self._now())
        self._submitted += message.spec.width  # whatever becomes of it: who reads its adapter knows it by its number
        try:
            self._started.check_request(group.spec)
            self._parts.open(group)
            self._open_grammar(group)
            asked = self._searches.open(group, message.stop_ids) if group.spec.searched else group
            self._started.add(asked, group.arrival)
        except LsvError as error:
            self._rejected += isinstance(error, Overloaded)
            self._close_group(group.id)
            raise
        self._open[group.id] = OpenRequest(owner, message.id, group.size)
        self._ids[owner, message.id] = group.id
        log.debug("req=%s queued: %d prompt tokens", message.spec.request_id, len(message.spec.prompt.ids))

    def abort(self, owner: Owner, ids: Iterable[int]) -> None:
        """Abort requests; their owner gets no more updates of them. Unknown ids are ignored."""
        known = {self._ids[owner, id] for id in ids if (owner, id) in self._ids}
        for outcome in self._started.abort(known) if known else ():
            self._drop(outcome.request)
            log.debug("req=%s aborted after %d tokens", outcome.request.spec.request_id, len(outcome.request.output))
        for group in known:
            self._forget(group)

    def abort_all(self, owner: Owner) -> None:
        """Abort all requests of an owner that is gone."""
        self.abort(owner, [id for known, id in self._ids if known == owner])

    def finish(self, owner: Owner, message: Finish) -> None:
        """End an answer where its owner has found its end; there are no more updates of it."""
        number = self._ids.get((owner, message.id))
        if number is None:
            return
        outcome = self._started.finish(number + message.index, message.keep, message.reason)
        if outcome is not None:
            self._close(outcome.request)

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        """Have every worker carry out an order once what is in flight has settled. Raises what refuses it."""
        self._settle_all()
        return self._executor.control(order)

    def watch(self, around: Callable[[Executor], Executor]) -> None:
        """Put something around the executor, or take it away again."""
        self._settle_all()
        self._executor = around(self._executor)

    def _forget_cached(self, host: bool) -> None:
        """The workers' cache, their embeddings of media and maybe host memory are about to go; no request has any."""
        self._settle_all()
        if not self.sleep.parts:  # what was computed last is saved behind the device
            self._plan_ahead(self._now())
            self._settle_all()
        self.adapters.interrupt(Unavailable("the engine was put to sleep while the adapter was read"))
        self._started.forget_cached(host=host)

    def refuse_all(self, error: LsvError) -> None:
        """End all requests with an error, of which their owners hear with the next step."""
        for group in tuple(self._open):
            for outcome in self._started.refuse(group, error.message):
                self._take(outcome, error)

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
        began = self._now()
        for outcome in self._started.expire(began):
            self._take(outcome)
        self._take_grammars()
        self.advance()
        try:
            self._plan_ahead(began)
            self.stalled = not self._in_flight
            if self._in_flight:
                self._settle_oldest(began)
        except EngineDied as error:
            self._fail_all(error)
            raise
        return self._updates.take()

    def advance(self) -> None:
        """Have the parts go on with what they have begun, and let requests through that need not wait any longer."""
        for part in self._parts.releasing:
            for group, error in part.ready():
                self._settle_need(group, part.name, error)

    @property
    def _started(self) -> Scheduler:
        assert self._scheduler is not None, "the engine has not been started"
        return self._scheduler

    def _plan_ahead(self, now: float) -> None:
        rhythm = self.rhythm
        while (plan := self._started.plan(now, needed=rhythm is not None and rhythm.behind)) is not None:
            if rhythm is not None:
                rhythm.take()
            for part in self._parts.stepping:
                part.before_step(self._steps + len(self._in_flight))
            if plan.masked and self._guide is not None:
                self._executor.submit(plan, self._guide.fill(self._started.guided))
            else:
                self._executor.submit(plan)
            self._in_flight.append(plan)
        self._preemptions.tell(self._started.preempted, self._started.preemptions)

    def _settle_all(self) -> None:
        while self._in_flight:
            self._settle_oldest(self._now())

    def _settle_oldest(self, began: float) -> None:
        result = self._executor.collect(self.config.step_timeout)
        now, plan = self._now(), self._in_flight.popleft()
        searching = bool(self._searches)
        for outcome in self._started.settle(plan, result, now):
            if searching:
                self._take(outcome)
            else:
                self._publish(self._guided(outcome))
        self._steps += 1
        if plan.tokens:
            self._tokens += plan.tokens
            self._step_tokens[bisect_left(STEP_TOKENS, plan.tokens)] += 1
        self._broken += result.broken
        self._nonfinite += 0 if result.broken else len(result.distrusted)
        self._unwarmed += result.unwarmed
        self._step_seconds += now - began
        self._model_seconds += result.seconds
        self._itl.tell(self._started.too_slow)

    def _open_grammar(self, group: RequestGroup) -> None:
        """Where answers must have a form, the group waits for its grammar. Raises what refuses it."""
        params = group.spec.sampling
        if params is None or not group.spec.guided:
            return
        if self._guide is None:
            raise BadRequest("structured_outputs: this engine has no grammars", param="structured_outputs")
        if not self._guide.open(group.id, params.structured_outputs, group.spec.salt):
            group.needs.add("grammar")

    def _take_grammars(self) -> None:
        """Resume requests whose grammars are compiled or have caught up; end those that can't go on."""
        if self._guide is None or not self._guide.busy:
            return
        seconds = _GRAMMAR_WAIT if self.stalled and not self._in_flight else 0.0
        for outcome in self._guide.take_followed(self._started, seconds):
            self._publish(outcome)
        for group, error in self._guide.take_compiled(seconds):
            self._settle_need(group, "grammar", error)

    def _settle_need(self, group: int, need: Need, error: LsvError | None) -> None:
        """Record that a group got something it needs, or refuse it with ``error``."""
        if error is None:
            self._started.satisfy(group, need)
            return
        for outcome in self._started.refuse(group, error.message):
            self._take(outcome, error)

    def _guided(self, outcome: Outcome) -> Outcome:
        """An outcome as it is once the request's grammar, if it has one, has seen the new tokens."""
        if self._guide is None or not outcome.request.spec.guided:
            return outcome
        return self._guide.follow(outcome, self._started)

    def _take(self, outcome: Outcome, error: LsvError | None = None) -> None:
        """News that may be of a beam search, whose rounds come to answers first; ``error`` as in ``_publish``."""
        group = outcome.request.group
        if group not in self._searches:
            if group in self._open:  # else it has failed in this very step
                self._publish(self._guided(outcome), error)
            return
        advance = self._searches.take(outcome)
        if advance is None:
            return
        asked = self._open[group]
        self._updates.add(asked, make_count(asked.id, advance.computed))
        if advance.round is None:
            self._started.abort([group])
        else:
            self._started.renew(advance.round)
        for answer in advance.answers:
            self._publish(answer, error)

    def _close_group(self, group: int) -> None:
        """A request group is over, or was never queued."""
        self._searches.close(group)
        for part in self._parts.closing:
            part.close(group)
        if self._guide is not None:
            self._guide.close(group)

    def _publish(self, outcome: Outcome, error: LsvError | None = None) -> None:
        """Turn an outcome into an update for its owner; ``error`` is what it failed with, where that is known."""
        request, asked = outcome.request, self._open[outcome.request.group]
        if outcome.error is not None and error is None and self._guide is not None:
            error = self._guide.fault(request)
        if outcome.finish is not None:
            self._close(request)
            log.debug("req=%s finished (%s): %d tokens", request.spec.request_id, outcome.finish, len(request.output))
        if outcome.error is not None:
            log.warning("req=%s failed: %s", request.spec.request_id, outcome.error)
        self._updates.add(asked, make_update(asked.id, outcome, error))

    def _close(self, request: Request) -> None:
        """A sequence has ended."""
        asked = self._open[request.group]
        asked.sequences -= 1
        self._drop(request)
        if not asked.sequences:
            self._forget(request.group)

    def _drop(self, request: Request) -> None:
        if self._guide is not None:
            self._guide.drop(request)

    def _forget(self, group: int) -> None:
        asked = self._open.pop(group)
        del self._ids[asked.owner, asked.id]
        self._close_group(group)

    def _fail_all(self, error: EngineDied) -> None:
        log.error("the engine can't go on: %s", error.message)
        self.failure = error
        self._started.fail_all(error.message)
        if self._guide is not None:
            self._guide.clear()
        self._searches.clear()
        self._open.clear()
        self._ids.clear()
        self._updates.clear()
        self._in_flight.clear()
