"""The torch platform: any kind of device that torch can compute on, by plain torch alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import OptionValue
from lsv.platform import Platform
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Device
from lsv_torch import machine

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_GIB = 1 << 30


class TorchPlatform(Platform):
    """Reference speed: no kernels, no graphs, one step at a time, one device."""

    name = "torch"
    attention: Sequence[str] = ("torch-paged",)

    def devices(self) -> Sequence[DeviceInfo]:
        return machine.devices()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        dtypes = tuple(info.detail["dtypes"].split(","))
        return Capabilities(dtypes=dtypes, kv_dtypes=("auto", "int8"), mixed_batches=True)

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Raises ``ConfigError`` where torch can't compute on the device that is asked for, or computes wrongly."""
        from lsv_torch.device import TorchDevice, try_out

        info, where = self._find(index, str(options.get("torch.device") or ""))
        try_out(where)
        log.warning("%s runs at reference speed, because it has no kernels", where)
        return TorchDevice(info, where, int(float(options.get("torch.memory") or 0) * _GIB))

    def _find(self, index: int, kind: str) -> tuple[DeviceInfo, torch.device]:
        import torch

        found = machine.devices(kind)
        if index >= len(found):
            why = machine.why_not(kind) or f"there is no device {index}: torch sees {len(found)}"
            raise ConfigError(why, param="torch.device")
        info = found[index]
        kind = info.detail["kind"]
        return info, torch.device(kind) if kind == "cpu" else torch.device(kind, index)
