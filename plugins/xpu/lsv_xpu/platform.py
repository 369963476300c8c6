"""The xpu platform: Intel GPUs through ``torch.xpu``, graphs of decoding steps, xccl between them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lsv.capabilities import Capabilities, DeviceInfo, Refusal
from lsv.config import EngineConfig, OptionValue
from lsv.platform import Advice, Platform, Traffic
from lsv.settings import export
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Device
from lsv_xpu import libraries
from lsv_xpu.devices_table import LACKS, LARGEST_ALLOCATION, Family, family_of, model_of
from lsv_xpu.probe import Prober, describe
from lsv_xpu.sysfs import Host

if TYPE_CHECKING:
    from lsv_xpu.runtime import Vendor

log = logging.getLogger(__name__)

_BANDWIDTH, _ARITHMETIC = 0.8, 0.6
"""The shares of a specification's figures that plain copies and large products attain on a sound device."""

_REFUSED: Mapping[Family, tuple[Refusal, ...]] = {
    Family.ALCHEMIST: (
        Refusal(
            "dtype=bfloat16",
            "dtype=bfloat16",
            "bfloat16 is known to be inaccurate on this generation (Alchemist); give --dtype float16, or float32 for "
            "a model that float16 is too narrow for",
        ),
    ),
}


class XpuPlatform(Platform):
    name = "xpu"
    attention: Sequence[str] = ("xpu-flash", "triton-paged", "ipex-paged", "torch-paged")

    def devices(self) -> Sequence[DeviceInfo]:
        return Prober().devices()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        """float16 comes first: all kernels take it. A checkpoint in bfloat16 keeps it, for the sake of its range."""
        dependable = family_of(info) is not Family.ALCHEMIST
        return Capabilities(
            dtypes=("float16", "bfloat16", "float32") if dependable else ("float16", "float32", "bfloat16"),
            kv_dtypes=("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"),
            mixed_batches=True,
            in_flight=2,
            refuses=_REFUSED.get(family_of(info), ()),
        )

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Raises ``ConfigError`` where there is no such device, or torch was built without XPU."""
        mask = options.get("xpu.affinity_mask")
        if mask:
            export({"ZE_AFFINITY_MASK": str(mask)}, replace=True)
        vendor = self._vendor(options)
        count = vendor.runtime.device_count()
        if index >= count:
            within = f" within ZE_AFFINITY_MASK={mask}" if mask else ""
            raise ConfigError(
                f"Intel GPU {index} does not exist: torch.xpu sees {count}{within}; lower tensor_parallel_size"
                f"{' or widen the mask' if mask else ''}",
                param="tensor_parallel_size",
            )
        from lsv_xpu.device import XpuDevice

        gpu = vendor.runtime.get_device_properties(index)
        info = describe(index, gpu.name, getattr(gpu, "device_id", 0), gpu.total_memory, gpu.driver_version)
        log.info("%s, driver %s%s%s", info.name, gpu.driver_version, _lacks(info), "" if mask else _place(index, count))
        family = libraries.why_not_family(info)
        float8 = family or libraries.why_not_float8(info, str(options.get("xpu.fp8_activations") or "auto"))
        for name, why_not in ((libraries.VLLM, family), (libraries.FP8_GEMM, float8)):
            if why_not is not None:
                libraries.refuse(name, why_not)
        device = XpuDevice(info, vendor, options)
        device.largest_allocation = LARGEST_ALLOCATION.get(family_of(info))
        return device

    def advise(self, config: EngineConfig, traffic: Sequence[Traffic]) -> Advice | None:
        """What is known of the device: its speeds, and what it lacks."""
        info = self._info_of(config)
        model = model_of(info)
        rows = [(name, "not there", meaning) for name, meaning in LACKS[family_of(info)].items()]
        if model is not None:
            speeds = f"{model.fp16_tflops:g} TFLOP/s in float16, {model.int8_tops:g} TOP/s in int8"
            rows.insert(0, ("memory", f"{model.gib} GB at {model.gigabytes_per_second:g} GB/s", speeds))
        return Advice(info.name, tuple(rows))

    def _info_of(self, config: EngineConfig) -> DeviceInfo:
        """The first device of an engine."""
        return self.devices()[config.device]

    def references(self, info: DeviceInfo) -> Mapping[str, float]:
        model = model_of(info)
        if model is None:
            return {}
        memory = model.gigabytes_per_second / model.tiles * _BANDWIDTH
        arithmetic = model.fp16_tflops / model.tiles * _ARITHMETIC
        found = {"copy_gb_s": memory, "read_gb_s": memory, "gemm_float16_tflop_s": arithmetic}
        if "bf16" not in model.lacks:
            found["gemm_bfloat16_tflop_s"] = arithmetic
        return found

    def _vendor(self, options: Mapping[str, OptionValue]) -> Vendor:
        from lsv_xpu.runtime import TorchXpu

        return TorchXpu()


def _lacks(info: DeviceInfo) -> str:
    lacking = ", ".join(LACKS[family_of(info)])
    return f"; not there: {lacking}" if lacking else ""


def _place(index: int, count: int) -> str:
    """The cores beside a device, on a machine with several memory nodes; "" where that is not known."""
    cards = [card for card in Host().cards() if card.discrete]
    if len(cards) != count or cards[index].numa < 0 or not cards[index].cpus:
        return ""
    return f"; it sits on NUMA node {cards[index].numa}: numactl -C {cards[index].cpus} keeps lsv beside it"
