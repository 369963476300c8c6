"""An opened Gaudi: memory, shapes, and the four ways to run a step."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from lsv.capabilities import DeviceInfo
from lsv.devices.accelerator import Accelerator
from lsv.devices.collectives import BackendCommunicator
from lsv.errors import ConfigError
from lsv.platform import BatchLimits, Budget, Communicator, Group, Memory, Shape, ShapePolicy, StepFn
from lsv_hpu import selection
from lsv_hpu.memory import GIB, split, written
from lsv_hpu.neural_compressor.calibration import Calibration
from lsv_hpu.neural_compressor.files import read_config
from lsv_hpu.settings import HpuOptions
from lsv_hpu.vendor import Vendor
from lsv_hpu.vendor_ops import VendorOps
from lsv_hpu.warmup import BucketPolicy

log = logging.getLogger(__name__)

_SHARE = 0.9


class HpuDevice(Accelerator):
    """A Gaudi. ``gpu_memory_utilization`` is a share of what is free once weights are loaded, 0.9 unless told.

    By ``hpu.lazy_mode`` and ``enforce_eager`` a step runs compiled by torch (off, off), op by op (off, on), as HPU
    graphs (on, off) or lazily (on, on).
    """

    def __init__(
        self, info: DeviceInfo, torch_device: torch.device, vendor: Vendor, ops: VendorOps, options: HpuOptions
    ) -> None:
        # Graphs are wrapped by the vendor, never captured by the base.
        super().__init__(info, torch_device, vendor)
        if vendor.is_lazy() != options.lazy_mode:
            raise ConfigError(
                f"hpu.lazy_mode is {str(options.lazy_mode).lower()}, but the Gaudi software was loaded with the "
                "opposite: set PT_HPU_LAZY_MODE alike",
                param="hpu.lazy_mode",
            )
        self._vendor, self._options = vendor, options
        self._margin = 0
        self._policy: BucketPolicy | None = None
        self._before = self._free()
        named = options.quant_config
        self._calibration = Calibration(read_config(Path(named)), ops.gaudi) if named else None
        selection.select(ops, fused_prompts=options.prompt_use_fusedsdpa, calibration=self._calibration)

    def budget(self, memory: Memory, share: float | None) -> Budget:
        options, part = self._options, share or _SHARE
        # Only lazy mode has graphs to keep memory for.
        reserved = options.graph_reserved_mem if options.lazy_mode else 0.0
        parts = split(memory.free, part, reserved)
        self._margin = parts.margin
        line = (
            f"Free device memory: {written(memory.free)}, {written(parts.usable)} usable "
            f"(gpu_memory_utilization={part:g}), {written(parts.graphs)} reserved for HPUGraphs "
            f"(VLLM_GRAPH_RESERVED_MEM={reserved:g}), {written(parts.kv)} reserved for KV cache"
        )
        log.info("%s", line)
        why = f"{part:g} of the {memory.free / GIB:.4g} GiB that are free"
        return Budget(parts.kv, f"{why}, less {reserved:g} of it for graphs" if reserved else why)

    def shapes(self, limits: BatchLimits) -> ShapePolicy:
        taken, total = max(0, self._before - self._free()), self._vendor.mem_get_info(self.info.index)[1]
        log.info(
            "Loading weights and the KV cache took %s of device memory (%s/%s used)",
            written(taken), written(total - self._free()), written(total),
        )  # fmt: skip
        self._policy = BucketPolicy(
            limits, self._options, self._free, margin=self._margin, seal=self._vendor.forbid_compiling
        )
        return self._policy

    def compile(self, step: StepFn, shape: Shape, *, eager: bool) -> StepFn:
        """In lazy mode a graph while the policy hands out shapes for graphs, and else the step with its ops given to
        the device at its end; otherwise what torch compiles, or the step itself.
        """
        policy, options, vendor = self._policy, self._options, self._vendor
        if policy is not None:
            policy.eager = eager
        if options.lazy_mode:
            if policy is not None and policy.capturing and not eager:
                step = vendor.wrap_in_graph(step, disable_tensor_cache=options.disable_tensor_cache)
            return _marked(step, vendor)
        if eager:
            return step
        dynamic = None if options.compile_dynamic_shapes else False
        return vendor.compile(step, fullgraph=options.compile_fullgraph, dynamic=dynamic)

    def communicator(self, group: Group) -> Communicator | None:
        if group.size == 1:
            return None
        if self._calibration is not None and group.axis == "tp":
            self._calibration.join(group.rank, group.size)
        return BackendCommunicator(group, self._vendor.make_collectives, self.torch_device)

    def close(self) -> None:
        if self._calibration is not None:
            self._calibration.save()
        super().close()
        selection.select(None)

    def _free(self) -> int:
        """Free bytes once all work given so far is done."""
        self.synchronize()
        return self._vendor.mem_get_info(self.info.index)[0]


def _marked(step: StepFn, vendor: Vendor) -> StepFn:
    def run() -> Any:
        result = step()
        vendor.mark_step()
        return result

    return run
