"""The worker: owns a device and a model on it, and turns step plans into step results."""

from __future__ import annotations

import time

import torch

from lsv.catalog import Catalog
from lsv.config import EngineConfig, Fit
from lsv.engine.executor import ReportProgress
from lsv.nn.sampling import Sampling
from lsv.platform import Communicator, Device, Group
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.worker.inputs import build_batch
from lsv.worker.loading import batch_limits, connect, load, open_device
from lsv.worker.readout import Readout, choose
from lsv.worker.slots import Slots
from lsv.worker.steps import Steps


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
        self._steps: Steps | None = None
        self._slots: Slots | None = None
        self._sampling = Sampling()

    @torch.inference_mode()
    def start(self, report: ReportProgress) -> Fit:
        """Open the device, load the model, allocate the cache, warm up; raises ``StartError``."""
        config = self._config
        device = self._device = open_device(config, self._catalog, self._group.rank)
        self._communicator = connect(device, self._group)
        loaded = load(config, self._catalog, device, self._communicator, report)
        declared, limits = loaded.declared, batch_limits(config)
        self._sampling = declared.sampling
        self._slots = Slots(
            capacity=limits.max_rows,
            groups=len(declared.groups),
            blocks=limits.max_blocks,
            vocab_size=declared.vocab_size,
        )
        self._steps = Steps(declared.model, loaded.backend, declared.groups, loaded.cache, device, {})
        self._steps.warm_up(device.shapes(limits), lambda done, total: report("warm-up", done, total))
        return loaded.fit

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Carry out a plan; an empty one only changes slots. What is wrong with a row fails it alone."""
        assert self._steps is not None, "the worker has not been started"
        assert self._slots is not None
        began = time.perf_counter()
        self._slots.apply(plan)
        slots = self._slots.of(plan.rows)
        readout = Readout(plan, slots, choose(plan.rows, slots), self._sampling)
        if plan.rows:
            batch = build_batch(plan, slots, self._slots.tables, self._config.block_size)
            hidden, step = self._steps.run(batch, readout.wanted.places(batch))
            model = self._steps.model
            readout.read(hidden, lambda states: model.head(states, step), self._agree)
        return readout.result(time.perf_counter() - began)

    def close(self) -> None:
        """Let go of the model, the cache, the other ranks and the device."""
        self._steps = self._slots = None
        for held in (self._communicator, self._device):
            if held is not None:
                held.close()
        self._communicator = self._device = None

    def _agree(self, tokens: list[int]) -> list[int]:
        """Rank 0's tokens. All ranks have the same logits and draw alike; this holds them together anyway."""
        if self._communicator is None:
            return tokens
        assert self._device is not None
        mine = torch.tensor(tokens, dtype=torch.int64, device=self._device.torch_device)
        agreed: list[int] = self._communicator.broadcast(mine).tolist()
        return agreed
