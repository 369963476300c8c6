"""The hpu platform without a Gaudi: its own code on host tensors, with the Gaudi software answered by strict fakes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lsv.capabilities import DeviceInfo
from lsv.config import OptionValue
from lsv.platform import Device, StepFn
from lsv.testing.emulation import FakeRuntime
from lsv_hpu.devices import GIB, NAMES, Card, Gaudi, describe
from lsv_hpu.platform import HpuPlatform
from lsv_hpu.settings import HpuOptions

if TYPE_CHECKING:
    import torch

    from lsv_hpu.vendor import Vendor
    from lsv_hpu.vendor_ops import VendorOps

log = logging.getLogger(__name__)

DEVICES = 2
_GRAPH_BYTES = 64 << 10
"""What the fake says a graph takes."""


class EmulatedHpu(HpuPlatform):
    """``hpu.emulated_memory`` GiB a device."""

    def devices(self) -> Sequence[DeviceInfo]:
        return tuple(emulated_info(index) for index in range(DEVICES))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        device = super().open(index, options)
        log.warning("EMULATED: %s is not there; this process's CPU computes, and speeds mean nothing", device.info.name)
        return device

    def _connect(self, info: DeviceInfo, options: HpuOptions) -> tuple[torch.device, Vendor, VendorOps]:
        import torch

        from lsv_hpu.emulation.ops import fake_ops

        total = int(options.emulated_memory * GIB)
        return torch.device("cpu"), FakeHabana(total, lazy=options.lazy_mode), fake_ops()


def emulated_info(index: int, gaudi: Gaudi = "gaudi2") -> DeviceInfo:
    card = Card(str(index), gaudi, GIB, f"{NAMES[gaudi]} (emulated)")
    return describe(index, card)


class FakeHabana(FakeRuntime):
    """Answers as the Gaudi software does for one process, with devices of ``total`` bytes.

    Nothing on the host is counted as device memory but graphs. ``compilations`` counts, by name of the call, what was
    compiled; lazy calls without lazy mode raise ``RuntimeError``, and so does compiling once it is forbidden.
    """

    library = "habana_frameworks"

    def __init__(self, total: int, *, lazy: bool = False) -> None:
        super().__init__(DEVICES, total)
        self.compilations: Counter[str] = Counter()
        self._lazy, self._sealed = lazy, False

    def is_lazy(self) -> bool:
        self.record("is_lazy")
        return self._lazy

    def mark_step(self) -> None:
        self.record("mark_step")
        self._require_lazy("mark_step")

    def wrap_in_graph(self, step: StepFn, *, disable_tensor_cache: bool) -> StepFn:
        self.record("wrap_in_graph", disable_tensor_cache)
        self._require_lazy("wrap_in_hpu_graph")
        return _Replayed(self, step)

    def compile(self, step: StepFn, *, fullgraph: bool, dynamic: bool | None) -> StepFn:
        self.record("compile", fullgraph, dynamic)
        if self._lazy:
            raise RuntimeError("torch.compile has no place in lazy mode")
        return _Compiled(self, step)

    def forbid_compiling(self) -> None:
        self.record("forbid_compiling")
        self._sealed = True

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        self.record("make_collectives", rank, size)
        from lsv.devices.collectives import gloo

        return gloo(store, rank, size, timeout)

    def count(self, what: str) -> None:
        """Something is compiled, or captured."""
        if self._sealed:
            raise RuntimeError("Recompilation triggered with fail_on_recompile stance")
        self.compilations[what] += 1
        self._taken += _GRAPH_BYTES * (what == "graph")

    def _require_lazy(self, call: str) -> None:
        if not self._lazy:
            raise RuntimeError(f"{call} needs lazy mode (PT_HPU_LAZY_MODE=1)")


class _Compiled:
    """What ``torch.compile`` gives: compiles at its first call."""

    def __init__(self, habana: FakeHabana, step: StepFn) -> None:
        self._habana, self._step, self._done = habana, step, False

    def __call__(self) -> Any:
        if not self._done:
            self._habana.count("compiled")
            self._done = True
        return self._step()


class _Replayed:
    """What ``wrap_in_hpu_graph`` gives: captures at its first call, then does the same on the same memory."""

    def __init__(self, habana: FakeHabana, step: StepFn) -> None:
        self._habana, self._step = habana, step
        self._recording: Any = None
        self._result: Any = None

    def __call__(self) -> Any:
        from lsv.testing.recording import Recording

        if self._recording is None:
            self._habana.count("graph")
            self._recording = Recording()
            with self._recording.capture():
                self._result = self._step()
        else:
            self._recording.replay()
        return self._result
