"""The cuda and rocm platforms: torch's CUDA devices, graphs of decoding steps, NCCL between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lsv import settings
from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv.platform import Platform
from lsv_base.errors import ConfigError
from lsv_cuda import datasheet
from lsv_cuda.machine import Machine, capability, describe
from lsv_cuda.makers import AMD, NVIDIA, Maker
from lsv_cuda.vendor import Vendor
from lsv_runtime.devices.device import Device

_BFLOAT16 = (8, 0)
_WITHOUT_BFLOAT16 = ("gfx900", "gfx906", "gfx10")
"""Beginnings of AMD's targets that have no instructions for it."""

_EXPORTED = {
    "cuda.nccl_debug": "NCCL_DEBUG",
    "cuda.nccl_socket_ifname": "NCCL_SOCKET_IFNAME",
    "cuda.nccl_ib_hca": "NCCL_IB_HCA",
}


class CudaPlatform(Platform):
    name = "cuda"
    maker: Maker = NVIDIA
    attention: Sequence[str] = ("flash-attn-3", "flashinfer", "flash-attn", "triton-paged", "torch-paged")

    def devices(self) -> Sequence[DeviceInfo]:
        return Machine(maker=self.maker).gpus()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        bfloat16 = ("bfloat16",) if self._has_bfloat16(info) else ()
        return Capabilities(
            dtypes=(*bfloat16, "float16", "float32"),
            kv_dtypes=("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"),
            mixed_batches=True,
            in_flight=2,
        )

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Raises ``ConfigError`` where there is no such GPU."""
        _hand_over(options)
        vendor = self._vendor()
        count = vendor.runtime.device_count()
        if index >= count:
            raise ConfigError(
                f"GPU {index} does not exist, {count} are visible: lower tensor_parallel_size or widen "
                f"{self.maker.visible}",
                param="tensor_parallel_size",
            )
        from lsv_cuda.device import CudaDevice

        gpu = vendor.runtime.get_device_properties(index)
        known = (gpu.name, gpu.total_memory, gpu.major, gpu.minor, gpu.multi_processor_count)
        info = describe(index, *known, getattr(gpu, "gcnArchName", "").partition(":")[0])
        blocking = bool(options.get("cuda.launch_blocking"))
        rows = int(options.get("cuda.graph_rows", 256) or 0)
        tokens = int(options.get("cuda.graph_tokens", 512) or 0)
        return CudaDevice(info, vendor, graph_rows=0 if blocking else rows, graph_tokens=tokens)

    def references(self, info: DeviceInfo) -> Mapping[str, float]:
        return datasheet.attainable(info.name)

    def _has_bfloat16(self, info: DeviceInfo) -> bool:
        return capability(info) >= _BFLOAT16

    def _vendor(self) -> Vendor:
        import torch

        from lsv_cuda.device import nccl

        return Vendor(torch.cuda, "cuda", nccl)


class RocmPlatform(CudaPlatform):
    """AMD's GPUs, by a torch that is built for HIP: it has the names of CUDA, and RCCL by that of NCCL."""

    name = "rocm"
    maker: Maker = AMD
    attention: Sequence[str] = ("flash-attn", "triton-paged", "torch-paged")

    def _has_bfloat16(self, info: DeviceInfo) -> bool:
        return not info.detail.get("target", "").startswith(_WITHOUT_BFLOAT16)


def _hand_over(options: Mapping[str, OptionValue]) -> None:
    """Settings that libraries read from the environment; they must be there before CUDA starts."""
    variables = {variable: str(options[name]) for name, variable in _EXPORTED.items() if options.get(name)}
    if options.get("cuda.launch_blocking"):
        variables["CUDA_LAUNCH_BLOCKING"] = "1"
    settings.export(variables, replace=True)
