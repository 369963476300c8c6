"""The cuda and rocm platforms without a GPU: their own code on an emulated device, a strict fake for ``torch.cuda``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from lsv.capabilities import DeviceInfo
from lsv.config import OptionValue
from lsv_cuda import libraries
from lsv_cuda.machine import describe
from lsv_cuda.platform import CudaPlatform, RocmPlatform
from lsv_cuda.vendor import Vendor
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.fakes import FakeCapturing, FakeGraph, emulated_device

if TYPE_CHECKING:
    from lsv_runtime.emulation.recording import Method

log = logging.getLogger(__name__)

_GPUS, _GRAPH_ROWS, _GRAPH_TOKENS = 8, 16, 64
_GIB = 1 << 30
_PROPERTIES = SimpleNamespace(
    name="emulated GPU", total_memory=8 * _GIB, major=9, minor=0, multi_processor_count=132
)  # fmt: skip


_AMD_PROPERTIES = SimpleNamespace(
    name="emulated AMD GPU", total_memory=8 * _GIB, major=9, minor=4, multi_processor_count=304,
    gcnArchName="gfx942:sramecc+:xnack-",
)  # fmt: skip


class EmulatedCudaPlatform(CudaPlatform):
    """Kernels written for GPUs run where they are asked for by name, in their interpreter: plain torch comes first."""

    attention: Sequence[str] = ("torch-paged", "triton-paged")

    def devices(self) -> Sequence[DeviceInfo]:
        gpu = self._properties()
        known = (gpu.name, gpu.total_memory, gpu.major, gpu.minor, gpu.multi_processor_count)
        target = getattr(gpu, "gcnArchName", "").partition(":")[0]
        return tuple(describe(index, *known, target) for index in range(_GPUS))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Graphs have at most ``_GRAPH_ROWS`` rows or ``_GRAPH_TOKENS`` tokens: all that they remember lies in the
        host's memory.
        """
        most = {"cuda.graph_rows": _GRAPH_ROWS, "cuda.graph_tokens": _GRAPH_TOKENS}
        asked = {name: options.get(name) for name in most}
        graphs = {name: size if asked[name] is None else min(int(asked[name]), size) for name, size in most.items()}
        from lsv_runtime.emulation.placement.launches import watch_interpreter

        interprets = bool(watch_interpreter())
        self._emulate_libraries(str(options.get("cuda.emulated_kernels") or "none"))
        device = super().open(index, {**options, **graphs})
        device.compiles_late = interprets and bool(options.get("triton.interpret"))
        log.warning("EMULATED: there is no GPU; this process's CPU computes, and speeds mean nothing")
        return device

    def _properties(self) -> SimpleNamespace:
        return _PROPERTIES

    def _emulate_libraries(self, choice: str) -> None:
        libraries.emulate(choice)

    def _vendor(self) -> Vendor:
        from lsv_runtime.emulation.placement.launches import EmulatedGloo

        return Vendor(FakeCuda(self._properties()), emulated_device(0).type, EmulatedGloo)


class EmulatedRocmPlatform(EmulatedCudaPlatform, RocmPlatform):
    """The same for AMD's GPUs."""

    attention: Sequence[str] = EmulatedCudaPlatform.attention

    def _properties(self) -> SimpleNamespace:
        return _AMD_PROPERTIES

    def _emulate_libraries(self, choice: str) -> None:
        super()._emulate_libraries(choice)
        if libraries.FLASH_ATTN_2 in libraries.EMULATED[choice]:
            from lsv_cuda.fakes.flash_attn import FakeFlashAttn2

            libraries.use(libraries.FLASH_ATTN_2, FakeFlashAttn2(hip=True))


class FakeCuda(FakeCapturing):
    """Answers as ``torch.cuda`` of torch 2.13 does, of GPUs with these ``properties``."""

    library = "torch.cuda"

    def __init__(self, properties: SimpleNamespace = _PROPERTIES) -> None:
        super().__init__(_GPUS, properties.total_memory)
        self._properties = properties
        self.profiler = SimpleNamespace(
            start=lambda: self.record("profiler.start"), stop=lambda: self.record("profiler.stop")
        )

    def get_device_properties(self, index: int, /) -> SimpleNamespace:
        self._check("get_device_properties", index)
        return self._properties

    def CUDAGraph(self) -> FakeGraph:
        self.record("CUDAGraph")
        return FakeGraph(self)

    def _outside(self) -> Sequence[Method]:
        from lsv_runtime.emulation.placement.launches import watch_interpreter

        return [*watch_interpreter(), *libraries.opaque_calls()]
