"""The hpu platform without a Gaudi: its own code on an emulated device, the Gaudi software answered by strict fakes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lsv.capabilities import DeviceInfo
from lsv.config import OptionValue
from lsv.platform import Device, StepFn
from lsv.testing.emulation import FakeRuntime, emulated_device
from lsv_hpu.devices import GIB, NAMES, Card, Gaudi, describe
from lsv_hpu.platform import HpuPlatform
from lsv_hpu.settings import HpuOptions

if TYPE_CHECKING:
    import torch

    from lsv_hpu.vendor import Vendor
    from lsv_hpu.vendor_ops import VendorOps

log = logging.getLogger(__name__)

DEVICES = 2


class EmulatedHpu(HpuPlatform):
    """``hpu.emulated_memory`` GiB a device."""

    def devices(self) -> Sequence[DeviceInfo]:
        return tuple(emulated_info(index) for index in range(DEVICES))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        device = super().open(index, options)
        log.warning("EMULATED: %s is not there; this process's CPU computes, and speeds mean nothing", device.info.name)
        return device

    def _connect(self, info: DeviceInfo, options: HpuOptions) -> tuple[torch.device, Vendor, VendorOps]:
        from lsv_hpu.emulation.ops import fake_ops

        return emulated_device(info.index), FakeHabana(int(options.emulated_memory * GIB)), fake_ops()


def emulated_info(index: int, gaudi: Gaudi = "gaudi2") -> DeviceInfo:
    card = Card(str(index), gaudi, GIB, f"{NAMES[gaudi]} (emulated)")
    return describe(index, card)


class FakeHabana(FakeRuntime):
    """Answers as the Gaudi software does for one process, with devices of ``total`` bytes.

    ``compilations`` counts what was compiled; compiling once that is forbidden raises ``RuntimeError``.
    """

    library = "habana_frameworks"

    def __init__(self, total: int) -> None:
        super().__init__(DEVICES, total)
        self.compilations = 0
        self._sealed = False

    def is_lazy(self) -> bool:
        self.record("is_lazy")
        return False

    def compile(self, step: StepFn, *, fullgraph: bool, dynamic: bool | None) -> StepFn:
        self.record("compile", fullgraph, dynamic)
        return _Compiled(self, step)

    def forbid_compiling(self) -> None:
        self.record("forbid_compiling")
        self._sealed = True

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        self.record("make_collectives", rank, size)
        from lsv.testing.placement.launches import EmulatedGloo

        return EmulatedGloo(store, rank, size, timeout)

    def count(self) -> None:
        """Something is compiled."""
        if self._sealed:
            raise RuntimeError("Recompilation triggered with fail_on_recompile stance")
        self.compilations += 1


class _Compiled:
    """What ``torch.compile`` gives: compiles at its first call."""

    def __init__(self, habana: FakeHabana, step: StepFn) -> None:
        self._habana, self._step, self._done = habana, step, False

    def __call__(self) -> Any:
        if not self._done:
            self._habana.count()
            self._done = True
        return self._step()
