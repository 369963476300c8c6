"""The cuda platform without a GPU: its own code on an emulated device, ``torch.cuda`` answered by a strict fake."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from lsv.capabilities import DeviceInfo
from lsv.config import OptionValue
from lsv.platform import Device
from lsv.testing.emulation import FakeCapturing, FakeGraph, emulated_device
from lsv_cuda.machine import describe
from lsv_cuda.platform import CudaPlatform
from lsv_cuda.vendor import Vendor

if TYPE_CHECKING:
    from lsv.testing.recording import Method

log = logging.getLogger(__name__)

_GPUS, _GRAPH_ROWS = 8, 32
_GIB = 1 << 30
_PROPERTIES = SimpleNamespace(
    name="emulated GPU", total_memory=2 * _GIB, major=9, minor=0, multi_processor_count=132
)  # fmt: skip


class EmulatedCudaPlatform(CudaPlatform):
    """Kernels written for GPUs run where they are asked for by name, in their interpreter: plain torch comes first."""

    attention: Sequence[str] = ("torch-paged", "triton-paged")

    def devices(self) -> Sequence[DeviceInfo]:
        gpu = _PROPERTIES
        known = (gpu.name, gpu.total_memory, gpu.major, gpu.minor, gpu.multi_processor_count)
        return tuple(describe(index, *known) for index in range(_GPUS))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Graphs have at most ``_GRAPH_ROWS`` rows: all that they remember lies in the host's memory."""
        asked = options.get("cuda.graph_rows")
        rows = _GRAPH_ROWS if asked is None else min(int(asked), _GRAPH_ROWS)
        from lsv.testing.placement.launches import watch_interpreter

        watch_interpreter()
        device = super().open(index, {**options, "cuda.graph_rows": rows})
        log.warning("EMULATED: there is no GPU; this process's CPU computes, and speeds mean nothing")
        return device

    def _vendor(self) -> Vendor:
        from lsv.testing.placement.launches import EmulatedGloo

        return Vendor(FakeCuda(), emulated_device(0).type, EmulatedGloo)


class FakeCuda(FakeCapturing):
    """Answers as ``torch.cuda`` of torch 2.13 does."""

    library = "torch.cuda"

    def __init__(self) -> None:
        super().__init__(_GPUS, _PROPERTIES.total_memory)

    def get_device_properties(self, index: int, /) -> SimpleNamespace:
        self._check("get_device_properties", index)
        return _PROPERTIES

    def CUDAGraph(self) -> FakeGraph:
        self.record("CUDAGraph")
        return FakeGraph(self)

    def _outside(self) -> Sequence[Method]:
        from lsv.testing.placement.launches import watch_interpreter

        return watch_interpreter()
