"""The worker: owns a device and a model on it, and turns step plans into step results."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import torch

from lsv.config import EngineConfig, Fit
from lsv.engine import executor
from lsv.engine.executor import ReportProgress
from lsv.plugins.catalog import Catalog
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_base.errors import ConfigError
from lsv_base.processes.orders import OrderTable, WorkerOrder
from lsv_runtime.devices.device import Device
from lsv_runtime.drafts.drafter import Drafter
from lsv_runtime.pipeline.meeting import Meeting
from lsv_runtime.pipeline.stage import Stage
from lsv_runtime.worker.checks.finiteness import make_check
from lsv_runtime.worker.in_flight import InFlight
from lsv_runtime.worker.inputs import build_batch
from lsv_runtime.worker.live import LiveModel, bring_to_life, make_slots
from lsv_runtime.worker.load.device import open_device
from lsv_runtime.worker.load.groups import Groups, join_groups
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_runtime.worker.parts.part import WorkerHandler, WorkerPartContext, make_parts, preceding
from lsv_runtime.worker.results import ResultBuilder, select_outputs
from lsv_runtime.worker.runner import Gather, no_media
from lsv_runtime.worker.slots import Slots, learn, must_know
from lsv_runtime.worker.tiers.mover import BlockMover, make_mover

_log = logging.getLogger(__name__)

_WITHOUT_MEMORY = (
    "; memory ran out: lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs, or spread the model "
    "over more devices by --tensor-parallel-size or --pipeline-parallel-size"
)


class Worker:
    """One device's share of an engine. ``start`` once, then ``step`` in the order of the plans.

    Of several ranks each gets every plan; ``address``, ``place`` and ``nearby`` are as in ``Start``. Only those of
    the last stage sample: the others are told by ``learn``, and have nothing to ``finish``.
    """

    def __init__(
        self,
        config: EngineConfig,
        catalog: Catalog,
        *,
        rank: int = 0,
        address: str = "",
        place: tuple[int, int] | None = None,
        nearby: str = "",
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._rank, self._place = rank, place
        self._meeting = Meeting.of_rank(rank, address, place, nearby)
        self._stage = Stage.of_rank(rank, config.topology)
        self._begins, self._ends = self._stage.begins, self._stage.ends
        self._groups = Groups()
        self._device: Device | None = None
        self._resident: ResidentModel | None = None
        self._live: LiveModel | None = None
        self._slots: Slots | None = None
        self._mover: BlockMover | None = None
        self._handed_on: deque[ResultBuilder] = deque()
        self._in_flight: deque[InFlight] = deque()
        self._finished = 0.0
        self._parts = tuple(make_parts(catalog, WorkerPartContext(config, rank)))
        self._preceding = preceding(self._parts)
        self.orders = OrderTable[WorkerOrder, WorkerHandler]("workers know", ConfigError, self._handlers())
        for part in self._parts:
            self.orders.add(part.orders)

    @torch.inference_mode()
    def start(self, report: ReportProgress) -> Fit:
        """Open the device, load the model, allocate the cache, warm up; raises ``StartError``."""
        config = self._config
        device = self._device = open_device(config, self._catalog, self._rank, self._place)
        groups = self._groups = join_groups(device, self._rank, config, self._meeting)
        self._resident = ResidentModel(config, self._catalog, device, self._stage, groups)
        loaded = self._resident.load(report)
        self._mover = make_mover(config, self._catalog, device, self._rank, groups.world or groups.sharing)
        self._slots = make_slots(config, self._catalog, self._resident)
        self._come_to_life(report)
        padding, parts = self.live.runner.policy.padding, self.live.media.parts
        cores = frozenset(os.sched_getaffinity(0))
        return msgspec.structs.replace(loaded.fit, padding=padding, encoder_parts=parts, cores=cores)

    def _come_to_life(self, report: ReportProgress) -> None:
        """Warm up the model that is in memory."""
        assert self._slots is not None
        for part in self._parts:
            part.load(self.resident)
        self._live = bring_to_life(self._config, self._catalog, self.resident, self._slots, report, drafts=self._ends)

    @property
    def live(self) -> LiveModel:
        """What steps are computed with."""
        assert self._live is not None, "the worker has not been started, or it sleeps"
        return self._live

    @property
    def resident(self) -> ResidentModel:
        assert self._resident is not None, "the worker has not been started"
        return self._resident

    @torch.inference_mode()
    def control(self, order: WorkerOrder) -> Mapping[str, float]:
        """Carry out an order, and return its answer, which most orders leave empty.

        Raises ``NotYet`` for an adapter that is still being read, ``CheckpointError`` for one that does not fit or a
        checkpoint that has changed, ``Unavailable`` where memory is short, ``ConfigError`` for an unknown order.
        """
        return self.orders.find(order)(order) or {}

    def _handlers(self) -> Mapping[type[WorkerOrder], WorkerHandler]:
        return {
            executor.Reset: lambda _: None,  # cached blocks are the scheduler's: there is nothing to forget
            executor.ReleaseMemory: lambda order: self._sleep(order.level),
            executor.RestoreMemory: lambda order: self._wake_up(order.parts),
        }

    def _sleep(self, level: int) -> None:
        """Give back what the model, its cache and captured steps take of the device's memory, see ``ResidentModel``."""
        assert self._device is not None
        for part in self._parts:
            part.check_sleep()
        self._device.synchronize()
        if level > 1 and self._mover is not None:
            self._mover.forget()
        for part in self._parts:
            part.sleep(level)
        self._live = None
        self.resident.sleep(level)

    def _wake_up(self, parts: Sequence[str]) -> None:
        self.resident.wake_up(parts)
        if self.resident.awake and self._live is None:
            self._come_to_life(lambda *_: None)

    @property
    def in_flight(self) -> int:
        """Steps that were launched and not finished."""
        return len(self._in_flight)

    def step(self, plan: StepPlan) -> StepResult:
        """Carry out a plan; an empty one only changes slots. What is wrong with a row fails it alone."""
        self.launch(plan)
        return self.finish()

    @torch.inference_mode()
    def launch(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        """Give a plan to the device, without waiting for what it samples.

        Tokens that the steps before are still about to sample are taken from the device; those steps are waited for
        only where the host has to know them, as penalties do. ``masks`` are waited for before the plan's rows sample.
        """
        live = self._live
        assert live is not None, "the worker has not been started, or it sleeps"
        assert self._slots is not None
        assert self._device is not None
        lost: tuple[int, ...] = ()
        if self._mover is not None and self._resident is not None and (plan.saves or plan.loads or plan.revoke):
            lost = self._mover.carry_out(plan, self._resident.memory)
        began = time.perf_counter()
        if live.drafter is not None:
            self._end_drafting(live.drafter, plan)
        for part in self._preceding:
            part.before(plan)
        self._slots.apply(plan, {} if live.adapters is None else live.adapters.faults)
        slots = self._slots.of(plan.rows)
        media, with_media = live.media, self._slots.with_media > 0 and any(slot.begin.media for slot in slots)
        encodes = plan.encode or plan.forget or media.faults
        unencoded = media.apply(plan, self._slots.all) if encodes else {}
        together = live.drafter is not None and self._groups.sharing is not None  # drafts may be a sum over ranks
        if self._in_flight and (together or any(plan.rows.drafts) or any(map(must_know, slots, plan.rows.start))):
            # the engine has heard of the drafts from one rank; others may still have to read what they have sampled
            for earlier in self._in_flight:
                earlier.settle()
        outputs = select_outputs(plan.rows, slots)
        results = ResultBuilder(
            plan, slots, outputs, live.sampling, live.pool, unencoded, masks, live.suspects, live.drafter,
            None if self._config.drafts is None else self._config.drafts.typical, lost, make_check(plan),
        )  # fmt: skip
        gather = (lambda laid: media.gather(laid, slots)) if with_media and self._begins else no_media
        if live.shared is not None and not plan.rows:
            live.shared.join()
        if not self._ends:
            if plan.rows:
                with self._device.observe(plan.kind, plan.rows.start, plan.rows.count):
                    self._run(results, gather)
            self._handed_on.append(results)
            return
        unwarmed, done = False, None
        if plan.rows:
            try:
                with self._device.observe(plan.kind, plan.rows.start, plan.rows.count):
                    unwarmed = self._run(results, gather)
                done = self._device.event() if results.pending else None
            except Exception as cause:
                self._fail(results, cause)
            if results.broken:  # and the error's frames have let go of their tensors
                self._device.release_cache()
        self._in_flight.append(InFlight(results, began, unwarmed=unwarmed, done=done, fail=self._fail))

    def _end_drafting(self, drafter: Drafter, plan: StepPlan) -> None:
        """Slots are free again. What came before is settled first: drafters see the same order on every rank."""
        assert self._slots is not None
        if plan.end:
            for earlier in self._in_flight:
                earlier.settle()
        for number in plan.end:
            drafter.end(self._slots.all[number].drafting)

    def _run(self, results: ResultBuilder, gather: Gather) -> bool:
        """Give the rows of a step to the device; whether they had a shape that was not warmed up."""
        live, plan, ahead = self._live, results.plan, bool(self._in_flight)
        assert live is not None
        assert self._slots is not None
        runner = live.runner
        batch = build_batch(
            plan, results.slots, self._slots.tables, self._config.block_size, axes=runner.axes, pairs=runner.pairs,
            ahead=ahead, adapted=live.adapters is not None, mutual=runner.mutual,
        )  # fmt: skip
        if self._config.in_flight > 1:
            batch = replace(batch, sampled=np.array([plan.rows.slot[row] for row in results.outputs.sampled], np.int64))
        if results.check is not None:
            batch = replace(batch, checked=True)
        ran = runner.run(plan.kind, batch, results.places, gather)
        if not self._ends:
            return False
        results.read(ran, partial(runner.head, ran), self._groups.agree)
        if self._config.in_flight > 1 and (latest := results.latest) is not None:
            runner.remember(ran.step, latest)
        return ran.unwarmed

    def _fail(self, results: ResultBuilder, cause: Exception) -> None:
        """An error fails the rows of its step, and no others, as long as the device can be used.

        With several ranks it is raised again: the others wait for this one in the middle of their step.
        """
        assert self._device is not None
        if not self._groups.alone or self._device.is_fatal(cause):
            raise cause
        plan = results.plan
        advice = _WITHOUT_MEMORY if isinstance(cause, torch.OutOfMemoryError | MemoryError) else ""
        _log.error("step %d failed, and with it %d requests%s", plan.step, len(plan.rows), advice, exc_info=cause)
        results.fail(f"step {plan.step} failed: {type(cause).__name__}: {cause}")

    def finish(self) -> StepResult:
        """Wait for the oldest step that was launched."""
        step = self._in_flight.popleft()
        step.settle()
        now = time.perf_counter()
        began, self._finished = max(step.began, self._finished), now
        return step.result(now - began)

    def learn(self, tokens: Sequence[Sequence[int]], drafts: Sequence[tuple[int, ...]]) -> None:
        """Take in what the last stage says of the oldest plan that this one has handed on, see ``slots.learn``."""
        learn(self._handed_on.popleft().slots, tokens, drafts)

    @property
    def unencoded(self) -> Mapping[bytes, str]:
        """By hash, why media could not be encoded in the plan that this stage has handed on last."""
        return self._handed_on[-1].unencoded

    def close(self) -> None:
        """Release the model, the cache, the connection to the other ranks and the device."""
        self._live = self._slots = self._resident = None
        self._parts = self._preceding = ()
        self.orders = OrderTable("workers know", ConfigError)
        self._in_flight.clear()
        self._handed_on.clear()
        gc.collect()  # models are full of cycles, and another engine may want the memory now
        for held in (self._mover, self._groups, self._device):
            if held is not None:
                held.close()
        self._mover, self._groups, self._device = None, Groups(), None
