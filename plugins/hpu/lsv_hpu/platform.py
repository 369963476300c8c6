"""The hpu platform: Intel Gaudi 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lsv.capabilities import Capabilities, DeviceInfo, Refusal
from lsv.config import EngineConfig, OptionValue
from lsv.platform import Advice, Platform, Traffic
from lsv.settings import export
from lsv_base.errors import ConfigError
from lsv_hpu.devices import Gaudi, Prober
from lsv_hpu.settings import HpuOptions, read
from lsv_runtime.devices.device import Device

if TYPE_CHECKING:
    import torch

    from lsv_hpu.vendor import Vendor
    from lsv_hpu.vendor_ops import VendorOps

_SLEEP = "its compiled parts stay with the weights that they were compiled for"
_FLOAT16 = "bfloat16 is what Gaudi computes in: give --dtype bfloat16"
_VARIABLES: Mapping[str, str] = {
    "PT_HPU_LAZY_MODE": "0",
    "PT_ENABLE_INT64_SUPPORT": "1",  # sampling adds up 64-bit weights
    # torch would load the Gaudi software as a side effect of being imported, and fail with it without saying why
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}
"""What the Gaudi software reads when it is loaded. Source: gaudi-pytorch-bridge v1.19.0 (5a56187),
python_packages/habana_frameworks/autoload/__init__.py and scripts/env_flags.yaml."""


class HpuPlatform(Platform):
    name = "hpu"
    attention: Sequence[str] = ("hpu-flat",)

    def devices(self) -> Sequence[DeviceInfo]:
        return Prober().devices()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        return Capabilities(
            dtypes=("bfloat16", "float32"),
            kv_dtypes=("auto", "fp8", "fp8_e4m3"),
            kv_aliases={"fp8_inc": "fp8_e4m3"},
            layout="padded",
            in_flight=2,
            refuses=(
                Refusal("dtype=float16", "dtype=float16", _FLOAT16),
                Refusal("sleep_mode", "sleep_mode", _SLEEP),
            ),
        )

    def environment(self, options: Mapping[str, OptionValue]) -> Mapping[str, str]:
        return _VARIABLES

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Raises ``ConfigError`` where there is no such device, and for settings that contradict each other."""
        chosen, present = read(options), self.devices()
        if index >= len(present):
            raise ConfigError(
                f"Gaudi {index} does not exist, {len(present)} are usable: lower tensor_parallel_size",
                param="tensor_parallel_size",
            )
        info = present[index]
        from lsv_hpu.device import HpuDevice

        return HpuDevice(info, *self._connect(info, chosen), chosen)

    def advise(self, config: EngineConfig, traffic: Sequence[Traffic]) -> Advice | None:
        """Buckets for a sample of requests, beside those the settings give."""
        from lsv_hpu.buckets.planner import advise

        return advise(config, traffic)

    def _connect(self, info: DeviceInfo, options: HpuOptions) -> tuple[torch.device, Vendor, VendorOps]:
        """Tells the Gaudi software what it reads from its environment, then loads it."""
        export({"PT_HPU_LAZY_MODE": "0", "HLS_MODULE_ID": info.detail["module"]}, replace=True)
        export(_VARIABLES)
        import torch

        from lsv_hpu.vendor import Habana
        from lsv_hpu.vendor_ops import installed

        gaudi: Gaudi = "gaudi3" if info.detail["gaudi"] == "gaudi3" else "gaudi2"
        return torch.device("hpu"), Habana(), installed(gaudi)
