"""An opened Gaudi: memory, shapes, and the two ways to run a step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch

from lsv.capabilities import DeviceInfo
from lsv_base.errors import ConfigError
from lsv_base.processes.usage import GIB, written
from lsv_hpu import integers, selection
from lsv_hpu.neural_compressor.calibration import Calibration
from lsv_hpu.neural_compressor.files import read_config
from lsv_hpu.regions import Parts, run_part
from lsv_hpu.settings import HpuOptions
from lsv_hpu.steps.observer import make_observer
from lsv_hpu.vendor import Vendor
from lsv_hpu.vendor_ops import VendorOps
from lsv_hpu.warmup import BucketPolicy
from lsv_runtime.devices.accelerator import Accelerator
from lsv_runtime.devices.collectives import BackendCommunicator
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.device import Budget, Event, Fill, Memory, StepFn
from lsv_runtime.devices.shapes import BatchLimits, Shape, ShapePolicy
from lsv_runtime.nn.model import Model

log = logging.getLogger(__name__)

_SHARE = 0.9


class HpuDevice(Accelerator):
    """A Gaudi. ``gpu_memory_utilization`` is a share of what is free once weights are loaded, 0.9 unless told.

    The parts of a model run compiled by torch with the vendor's backend, or with ``enforce_eager`` op by op.
    """

    def __init__(
        self, info: DeviceInfo, torch_device: torch.device, vendor: Vendor, ops: VendorOps, options: HpuOptions
    ) -> None:
        super().__init__(info, torch_device, vendor)
        # Gaudi has no pinned memory. Source: vllm-gaudi 091bbad, vllm_gaudi/platform.py, is_pin_memory_available
        self.pinned = False
        if vendor.is_lazy():
            raise ConfigError(
                "the Gaudi software was loaded in lazy mode, which lsv does not run in: set PT_HPU_LAZY_MODE=0 before "
                "Python starts",
                param="platform",
            )
        self._vendor, self._options = vendor, options
        named = options.quant_config
        self._calibration = Calibration(read_config(Path(named)), ops.gaudi) if named else None
        self._parts: Parts | None = None
        exact = integers.are_exact(torch_device)
        if not exact:
            log.warning(
                "64-bit integers are not exact on this device (is PT_ENABLE_INT64_SUPPORT=0 set?): tokens are drawn on "
                "the host, which is right and slower"
            )
        self._selection = selection.Selection(ops, options.prompt_use_fusedsdpa, self._calibration, exact)
        selection.select(self._selection)
        self._seals = False
        self._observer = make_observer(options, vendor, info.index)

    def budget(self, memory: Memory, share: float | None) -> Budget:
        part = share or _SHARE
        usable = int(memory.free * part)
        log.info(
            "Free device memory: %s, %s usable for the KV cache (gpu_memory_utilization=%g)",
            written(memory.free), written(usable), part,
        )  # fmt: skip
        return Budget(usable, f"{part:g} of the {memory.free / GIB:.4g} GiB that are free")

    def shapes(self, limits: BatchLimits) -> ShapePolicy:
        policy = BucketPolicy(limits, self._options, self._free, seal=self._seal)
        return policy if self._observer is None else self._observer.watch(policy)

    def observe(self, kind: str, start: Sequence[int], count: Sequence[int]) -> AbstractContextManager[object]:
        if self._seals:
            self._seals = False
            self._vendor.forbid_compiling()
        if self._observer is None:
            return super().observe(kind, start, count)
        return self._observer.observe(kind, start, count)

    def event(self) -> Event | None:
        event = super().event()
        return event if event is None or self._observer is None else self._observer.ending(event)

    def compile_parts(self, model: torch.nn.Module) -> None:
        assert isinstance(model, Model)
        dynamic = None if self._options.compile_dynamic_shapes else False
        compiled = self._vendor.compile(run_part, fullgraph=self._options.compile_fullgraph, dynamic=dynamic)
        self._parts = Parts(compiled)
        self._parts.divide(model)

    def compile(self, step: StepFn, shape: Shape, *, eager: bool, fillings: Sequence[Fill] = ()) -> StepFn:
        """The step with its parts compiled, or the step itself."""
        return step if eager or self._parts is None else partial(self._parts.run, step)

    def communicator(self, group: Group) -> Communicator | None:
        if group.size == 1:
            return None
        if self._calibration is not None and group.axis == "tp":
            self._calibration.join(group.rank, group.size)
        return BackendCommunicator(group, self._vendor.make_collectives, self.torch_device)

    def close(self) -> None:
        if self._calibration is not None:
            self._calibration.save()
        if self._observer is not None:
            self._observer.close()
        super().close()
        selection.deselect(self._selection)

    def _seal(self) -> None:
        """Forbid compiling from the first step on: a draft model warms up after the model."""
        self._seals = True

    def _free(self) -> int:
        """Free bytes once all work given so far is done."""
        self.synchronize()
        return self._vendor.mem_get_info(self.info.index)[0]
