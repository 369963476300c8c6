"""The worker: owns a device and a model on it, and turns step plans into step results."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from lsv.adapters.orders import DropAdapter, ReadAdapter
from lsv.config import EngineConfig, Fit
from lsv.engine import executor
from lsv.engine.executor import ReportProgress
from lsv.errors import BadRequest, ConfigError
from lsv.plugins.catalog import Catalog
from lsv.processes.orders import OrderTable, WorkerOrder
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_runtime.adapters.store import AdapterStore
from lsv_runtime.devices.device import Device, Event
from lsv_runtime.devices.shapes import BatchLimits
from lsv_runtime.drafts.drafter import Drafter, Site
from lsv_runtime.drafts.making import make_drafter, taps_of
from lsv_runtime.nn.pooling.states import Pool
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.pipeline.meeting import Meeting
from lsv_runtime.pipeline.stage import Stage
from lsv_runtime.worker.checks.finiteness import make_check
from lsv_runtime.worker.encoder import MediaEncoder, make_media_encoder
from lsv_runtime.worker.experts.shared import SharedExperts
from lsv_runtime.worker.inputs import build_batch
from lsv_runtime.worker.load.bound import name_strangers
from lsv_runtime.worker.load.dense import make_pool
from lsv_runtime.worker.load.device import batch_limits, open_device
from lsv_runtime.worker.load.groups import Groups, join_groups
from lsv_runtime.worker.load.loaded import Loaded
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_runtime.worker.processing import Processors
from lsv_runtime.worker.profiling.profiler import Profiler
from lsv_runtime.worker.results import ResultBuilder, select_outputs
from lsv_runtime.worker.runner import Gather, ModelRunner, no_media
from lsv_runtime.worker.slots import Slots, learn, must_know
from lsv_runtime.worker.tiers.mover import BlockMover, make_mover
from lsv_runtime.worker.variants import sample_in_all_ways

_log = logging.getLogger(__name__)

_WITHOUT_MEMORY = (
    "; memory ran out: lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs, or spread the model "
    "over more devices by --tensor-parallel-size or --pipeline-parallel-size"
)

Handler = Callable[[Any], Mapping[str, float] | None]
"""Carries out an order of one type, and may answer it."""
Fail = Callable[[ResultBuilder, Exception], None]
"""Fails the rows of a step; raises the error where that is not enough."""


class InFlight:
    """A step that was given to the device, at ``began`` seconds of ``time.perf_counter``."""

    def __init__(self, results: ResultBuilder, began: float, *, unwarmed: bool, done: Event | None, fail: Fail) -> None:
        self.began, self.unwarmed = began, unwarmed
        self._results, self._done, self._fail = results, done, fail
        self._settled = False

    def settle(self) -> None:
        """Wait for the step; from then on the host knows its tokens."""
        if self._settled:
            return
        try:
            if self._done is not None:
                self._done.synchronize()
            self._results.settle()
        except Exception as cause:
            self._fail(self._results, cause)
        if self._results.failed:
            self._results.stand_in()
        self._settled = True

    def result(self, seconds: float) -> StepResult:
        return self._results.result(seconds, unwarmed=self.unwarmed)


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
        self._shared: SharedExperts | None = None
        self._handed_on: deque[ResultBuilder] = deque()
        self._device: Device | None = None
        self._resident: ResidentModel | None = None
        self._profiler: Profiler | None = None
        self._runner: ModelRunner | None = None
        self._slots: Slots | None = None
        self._sampling = Sampling()
        self._pool = Pool()
        self._drafter: Drafter | None = None
        self._suspects = ""
        self._media = MediaEncoder(None, torch.device("cpu"))
        self._adapters: AdapterStore | None = None
        self._mover: BlockMover | None = None
        self._in_flight: deque[InFlight] = deque()
        self._finished = 0.0
        self.orders = OrderTable("workers know", ConfigError, self._handlers())

    @torch.inference_mode()
    def start(self, report: ReportProgress) -> Fit:
        """Open the device, load the model, allocate the cache, warm up; raises ``StartError``."""
        config = self._config
        device = self._device = open_device(config, self._catalog, self._rank, self._place)
        groups = self._groups = join_groups(device, self._rank, config, self._meeting)
        self._resident = ResidentModel(config, self._catalog, device, self._stage, groups)
        loaded = self._resident.load(report)
        self._mover = make_mover(config, self._catalog, device, self._rank, groups.world or groups.sharing)
        declared, limits = loaded.declared, self._limits(loaded)
        self._slots = Slots(
            capacity=limits.max_rows,
            groups=declared.groups,
            block_size=config.block_size,
            blocks=limits.max_blocks,
            vocab_size=declared.vocab_size,
            processors=Processors(self._catalog, config, declared.vocab_size, device.torch_device),
        )
        runner = self._make_runner(device, self._resident, report)
        parts, cores = self._media.parts, frozenset(os.sched_getaffinity(0))
        return msgspec.structs.replace(loaded.fit, padding=runner.policy.padding, encoder_parts=parts, cores=cores)

    def _limits(self, loaded: Loaded) -> BatchLimits:
        return batch_limits(self._config, loaded.fit.num_blocks, prompts_captured=loaded.backend.captures_prompts)

    def _make_runner(self, device: Device, resident: ResidentModel, report: ReportProgress) -> ModelRunner:
        """What runs the model over its cache, warmed up, and what else belongs to the model."""
        config, loaded = self._config, resident.loaded
        declared, limits = loaded.declared, self._limits(loaded)
        self._sampling, self._suspects = declared.sampling, name_strangers(loaded.fit.ops, self._catalog)
        self._pool = make_pool(config.pooler, config.model, declared.model.scorer, device.torch_device)
        self._adapters = loaded.adapters
        self._drafter = make_drafter(config, self._catalog) if self._ends else None
        if self._groups.exchange is not None:
            self._shared = SharedExperts(declared.model, self._groups.exchange)
        runner = self._runner = ModelRunner(
            declared.model,
            loaded.backend,
            declared.groups,
            resident.cache,
            device,
            device.shapes(limits),
            padded=config.layout == "padded",
            slots=limits.max_rows,
            links=self._groups.links,
            taps=taps_of(self._drafter, declared.model, config),
            shared=self._shared,
        )
        with resident.warming_up():
            runner.warm_up(
                lambda done, total: report("warm-up", done, total),
                eager=config.enforce_eager,
                sample=partial(sample_in_all_ways, ops=self._sampling),
            )
        if self._drafter is not None:
            self._drafter.start(Site(config, self._catalog, device, declared.model, self._sampling))
        self._media = make_media_encoder(declared.model, config, device, self._write_item, self._groups.links)
        if self._shared is not None:
            self._shared.wait()
        return runner

    @property
    def adapters(self) -> AdapterStore:
        assert self._adapters is not None, "adapters are not enabled"
        return self._adapters

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

    def _handlers(self) -> Mapping[type[WorkerOrder], Handler]:
        return {
            executor.Reset: lambda _: None,  # cached blocks are the scheduler's: there is nothing to forget
            ReadAdapter: lambda order: self.adapters.load(order.id, order.path, order.digest),
            DropAdapter: lambda order: self.adapters.drop(order.id),
            executor.ReleaseMemory: lambda order: self._sleep(order.level),
            executor.RestoreMemory: lambda order: self._wake_up(order.parts),
            executor.StartProfiler: lambda _: self._open_profiler().start(self.resident.loaded.declared.model),
            executor.StopProfiler: lambda _: self._open_profiler().stop(),
            executor.CountExperts: lambda _: self.resident.count_experts(),
            executor.BalanceExperts: lambda _: self.resident.balance_experts(),
        }

    def _open_profiler(self) -> Profiler:
        assert self._config.profiling is not None, "profiles are not enabled"
        assert self._device is not None
        self._profiler = self._profiler or Profiler(self._config.profiling, self._device, self._rank)
        return self._profiler

    def _sleep(self, level: int) -> None:
        """Give back what the model, its cache and captured steps take of the device's memory, see ``ResidentModel``."""
        assert self._device is not None
        if self._profiler is not None and self._profiler.running:
            raise BadRequest("a profile is being recorded: stop that first")
        self._device.synchronize()
        if level > 1 and self._mover is not None:
            self._mover.forget()
        self._media, self._runner, self._adapters = MediaEncoder(None, self._device.torch_device), None, None
        self._sampling, self._pool, self._drafter = Sampling(), Pool(), None
        self.resident.sleep(level)

    def _wake_up(self, parts: Sequence[str]) -> None:
        assert self._device is not None
        self.resident.wake_up(parts)
        if self.resident.awake and self._runner is None:
            self._make_runner(self._device, self.resident, lambda *_: None)

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
        assert self._runner is not None, "the worker has not been started"
        assert self._slots is not None
        assert self._device is not None
        lost: tuple[int, ...] = ()
        if self._mover is not None and self._resident is not None and (plan.saves or plan.loads or plan.revoke):
            lost = self._mover.carry_out(plan, self._resident.memory)
        began = time.perf_counter()
        if self._drafter is not None:
            self._end_drafting(self._drafter, plan)
        for entering in plan.adapters:
            self.adapters.enter(entering.slot, entering.adapter)
        self._slots.apply(plan, {} if self._adapters is None else self._adapters.faults)
        slots = self._slots.of(plan.rows)
        media, with_media = self._media, self._slots.with_media > 0 and any(slot.begin.media for slot in slots)
        encodes = plan.encode or plan.forget or media.faults
        unencoded = media.apply(plan, self._slots.all) if encodes else {}
        together = self._drafter is not None and self._groups.sharing is not None  # drafts may be a sum over ranks
        if self._in_flight and (together or any(plan.rows.drafts) or any(map(must_know, slots, plan.rows.start))):
            # the engine has heard of the drafts from one rank; others may still have to read what they have sampled
            for earlier in self._in_flight:
                earlier.settle()
        outputs = select_outputs(plan.rows, slots)
        results = ResultBuilder(
            plan, slots, outputs, self._sampling, self._pool, unencoded, masks, self._suspects, self._drafter,
            None if self._config.drafts is None else self._config.drafts.typical, lost, make_check(plan),
        )  # fmt: skip
        gather = (lambda laid: media.gather(laid, slots)) if with_media and self._begins else no_media
        if self._shared is not None and not plan.rows:
            self._shared.join()
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
        assert self._runner is not None
        assert self._slots is not None
        runner, plan, ahead = self._runner, results.plan, bool(self._in_flight)
        batch = build_batch(
            plan, results.slots, self._slots.tables, self._config.block_size, axes=runner.axes, pairs=runner.pairs,
            ahead=ahead, adapted=self._adapters is not None, mutual=runner.mutual,
        )  # fmt: skip
        if self._config.in_flight > 1:
            batch = replace(batch, sampled=np.array([plan.rows.slot[row] for row in results.outputs.sampled], np.int64))
        if results.check is not None:
            batch = replace(batch, checked=True)
        ran = runner.run(plan.kind, batch, results.places, gather)
        if not self._ends:
            return False
        results.read(ran, partial(runner.head, ran), self._agree)
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

    def _write_item(self, item: Tensor, slot: int) -> None:
        assert self._runner is not None
        assert self._slots is not None
        number = np.array([slot])
        self._runner.write_item(item, tuple(table.rows(number, 1) for table in self._slots.tables))

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
        self._runner = self._slots = self._adapters = self._resident = None
        self._media, self._sampling = MediaEncoder(None, torch.device("cpu")), Sampling()
        self._pool, self._drafter = Pool(), None
        self._in_flight.clear()
        self._handed_on.clear()
        gc.collect()  # models are full of cycles, and another engine may want the memory now
        for held in (self._mover, self._groups, self._device):
            if held is not None:
                held.close()
        self._mover, self._groups, self._shared, self._device = None, Groups(), None, None

    def _agree(self, tokens: Tensor) -> Tensor:
        """Rank 0's tokens. All ranks have the same logits and draw alike; this makes sure that they never diverge."""
        sharing = self._groups.sharing
        return tokens if sharing is None else sharing.broadcast(tokens.contiguous())
