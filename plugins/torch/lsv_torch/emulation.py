"""The torch platform on the emulated device, which torch knows as one of a backend that it does not contain."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lsv.capabilities import DeviceInfo
from lsv_runtime.emulation.fakes import emulated_device
from lsv_torch.platform import TorchPlatform

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_INFO = DeviceInfo(0, "emulated device", 8 << 30, {"kind": "emulated", "dtypes": "float32,bfloat16,float16"})


class EmulatedTorchPlatform(TorchPlatform):
    """Its module of torch tells next to nothing: neither how much memory there is nor how to wait for it."""

    def devices(self) -> Sequence[DeviceInfo]:
        return (_INFO,)

    def _find(self, index: int, kind: str) -> tuple[DeviceInfo, torch.device]:
        log.warning("EMULATED: there is no such device; this process's CPU computes, and speeds mean nothing")
        return _INFO, emulated_device(index)
