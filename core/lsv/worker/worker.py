"""The worker: owns a device and a model on it, and turns step plans into step results."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import ReportProgress
from lsv.nn.pooling.states import Pool
from lsv.nn.sampling import Sampling
from lsv.platform import Communicator, Device, Event, Group
from lsv.plugins.catalog import Catalog
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv.worker.encoder import MediaEncoder
from lsv.worker.inputs import build_batch
from lsv.worker.load.bound import name_strangers
from lsv.worker.load.dense import make_pool
from lsv.worker.load.device import batch_limits, connect, open_device
from lsv.worker.load.graphs import report_graphs
from lsv.worker.load.loaded import load
from lsv.worker.processing import Processors
from lsv.worker.results import ResultBuilder, select_outputs
from lsv.worker.runner import Gather, ModelRunner, no_media
from lsv.worker.slots import Slot, Slots
from lsv.worker.variants import sample_in_all_ways

_log = logging.getLogger(__name__)

_WITHOUT_MEMORY = (
    "; memory ran out: lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs, or spread the model "
    "over more devices by --tensor-parallel-size"
)

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

    With tensor parallelism every rank gets every plan; ``address`` (host:port) is where the ranks meet.
    """

    def __init__(self, config: EngineConfig, catalog: Catalog, *, rank: int = 0, address: str = "") -> None:
        self._config = config
        self._catalog = catalog
        self._group = Group("tp", tuple(range(config.topology.tensor)), rank, address)
        self._communicator: Communicator | None = None
        self._device: Device | None = None
        self._runner: ModelRunner | None = None
        self._slots: Slots | None = None
        self._sampling = Sampling()
        self._pool = Pool()
        self._suspects = ""
        self._media = MediaEncoder(None, torch.device("cpu"))
        self._in_flight: deque[InFlight] = deque()
        self._finished = 0.0

    @torch.inference_mode()
    def start(self, report: ReportProgress) -> Fit:
        """Open the device, load the model, allocate the cache, warm up; raises ``StartError``."""
        config = self._config
        device = self._device = open_device(config, self._catalog, self._group.rank)
        self._communicator = connect(device, self._group)
        loaded = load(config, self._catalog, device, self._communicator, report)
        declared, captures_prompts = loaded.declared, loaded.backend.captures_prompts
        limits = batch_limits(config, loaded.fit.num_blocks, prompts_captured=captures_prompts)
        self._sampling, self._suspects = declared.sampling, name_strangers(loaded.fit.ops, self._catalog)
        self._pool = make_pool(config.pooler, config.model, declared.model.scorer, device.torch_device)
        self._slots = Slots(
            capacity=limits.max_rows,
            groups=declared.groups,
            block_size=config.block_size,
            blocks=limits.max_blocks,
            vocab_size=declared.vocab_size,
            processors=Processors(self._catalog, config, declared.vocab_size, device.torch_device),
        )
        policy = device.shapes(limits)
        self._runner = ModelRunner(
            declared.model,
            loaded.backend,
            declared.groups,
            loaded.cache,
            device,
            policy,
            padded=config.layout == "padded",
            slots=limits.max_rows,
        )
        with report_graphs(device, loaded.fit):
            self._runner.warm_up(
                lambda done, total: report("warm-up", done, total),
                eager=config.enforce_eager,
                sample=partial(sample_in_all_ways, ops=self._sampling),
            )
        self._media = MediaEncoder(declared.model.encoder, device.torch_device, self._write_item)
        parts, cores = self._media.parts, frozenset(os.sched_getaffinity(0))
        return msgspec.structs.replace(loaded.fit, padding=policy.padding, encoder_parts=parts, cores=cores)

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
        began = time.perf_counter()
        self._slots.apply(plan)
        slots = self._slots.of(plan.rows)
        media, with_media = self._media, self._slots.with_media > 0 and any(slot.begin.media for slot in slots)
        unencoded = media.apply(plan, self._slots.all) if plan.encode or plan.forget or media.faults else {}
        if self._in_flight and any(map(_must_know, slots, plan.rows.start, plan.rows.count)):
            for earlier in self._in_flight:
                earlier.settle()
        outputs = select_outputs(plan.rows, slots)
        results = ResultBuilder(plan, slots, outputs, self._sampling, self._pool, unencoded, masks, self._suspects)
        unwarmed, done = False, None
        if plan.rows:
            gather = (lambda laid: media.gather(laid, slots)) if with_media else no_media
            try:
                unwarmed = self._run(results, gather)
                done = self._mark(results)
            except Exception as cause:
                self._fail(results, cause)
            if results.broken:  # and the error's frames have let go of their tensors
                self._device.release_cache()
        self._in_flight.append(InFlight(results, began, unwarmed=unwarmed, done=done, fail=self._fail))

    def _run(self, results: ResultBuilder, gather: Gather) -> bool:
        """Give the rows of a step to the device; whether they had a shape that was not warmed up."""
        assert self._runner is not None
        assert self._slots is not None
        runner, plan, ahead = self._runner, results.plan, bool(self._in_flight)
        batch = build_batch(
            plan,
            results.slots,
            self._slots.tables,
            self._config.block_size,
            axes=runner.axes,
            pairs=runner.pairs,
            ahead=ahead,
        )
        if self._config.in_flight > 1:
            numbers = [plan.rows.slot[row] for row in results.outputs.sampled]
            batch = replace(batch, sampled=np.array(numbers, np.int64))
        ran = runner.run(plan.kind, batch, results.outputs.places, gather)
        results.read(ran, partial(runner.head, ran), self._agree)
        if results.drawn is not None and self._config.in_flight > 1:
            runner.remember(ran.step, results.drawn)
        return ran.unwarmed

    def _fail(self, results: ResultBuilder, cause: Exception) -> None:
        """An error fails the rows of its step, and no others, as long as the device can be used.

        With several ranks it is raised again: the others wait for this one in the middle of their step.
        """
        assert self._device is not None
        if self._communicator is not None or self._device.is_fatal(cause):
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

    def close(self) -> None:
        """Release the model, the cache, the connection to the other ranks and the device."""
        self._runner = self._slots = None
        self._media, self._sampling = MediaEncoder(None, torch.device("cpu")), Sampling()
        self._pool = Pool()
        self._in_flight.clear()
        gc.collect()  # models are full of cycles, and another engine may want the memory now
        for held in (self._communicator, self._device):
            if held is not None:
                held.close()
        self._communicator = self._device = None

    def _agree(self, tokens: Tensor) -> Tensor:
        """Rank 0's tokens. All ranks have the same logits and draw alike; this makes sure that they never diverge."""
        return tokens if self._communicator is None else self._communicator.broadcast(tokens.contiguous())

    def _mark(self, results: ResultBuilder) -> Event | None:
        assert self._device is not None
        return self._device.event() if results.pending else None


def _must_know(slot: Slot, start: int, count: int) -> bool:
    """Whether the host must know a token that is still being sampled before it can say what may follow."""
    return len(slot.tokens) < start + count and slot.constrained
