"""The hpu platform without a Gaudi: its own code on an emulated device, the Gaudi software answered by strict fakes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lsv.capabilities import DeviceInfo
from lsv.config import OptionValue
from lsv_hpu.devices import GIB, NAMES, Card, Gaudi, describe
from lsv_hpu.platform import HpuPlatform
from lsv_hpu.settings import HpuOptions
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.fakes import FakeRuntime, emulated_device

if TYPE_CHECKING:
    import torch

    from lsv_hpu.emulation.counting import OpByOp
    from lsv_hpu.vendor import Metric, Vendor
    from lsv_hpu.vendor_ops import VendorOps

log = logging.getLogger(__name__)

Function = Callable[..., Any]

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

        device = emulated_device(info.index)
        return device, FakeHabana(int(options.emulated_memory * GIB), device), fake_ops()


def emulated_info(index: int, gaudi: Gaudi = "gaudi2") -> DeviceInfo:
    card = Card(str(index), gaudi, GIB, f"{NAMES[gaudi]} (emulated)")
    return describe(index, card)


class FakeHabana(FakeRuntime):
    """Answers as the Gaudi software does for one process, with devices of ``total`` bytes.

    ``compilations`` counts what was compiled; compiling once that is forbidden raises ``RuntimeError``.
    """

    library = "habana_frameworks"

    def __init__(self, total: int, device: torch.device | None = None) -> None:
        """``device`` is where ops are counted that run one by one, while a metric is open."""
        super().__init__(DEVICES, total)
        self.compilations = 0
        self._sealed = False
        self._counted_on = device
        self._ops: OpByOp | None = None

    def is_lazy(self) -> bool:
        self.record("is_lazy")
        return False

    def compile(self, function: Function, *, fullgraph: bool, dynamic: bool | None) -> Function:
        self.record("compile", fullgraph, dynamic)
        return _Compiled(self, function)

    def forbid_compiling(self) -> None:
        self.record("forbid_compiling")
        self._sealed = True

    @contextmanager
    def metric(self, name: str) -> Iterator[Metric]:
        self.record("metric", name)
        from lsv_hpu.emulation.counting import FakeCpuFallback, FakeGraphCompilation, OpByOp

        if name != "graph_compilation" or self._counted_on is None:
            yield FakeCpuFallback()
            return
        self._ops = self._ops or OpByOp(self._counted_on)
        self._ops.counting = counted = FakeGraphCompilation()
        try:
            with self._ops:
                yield counted
        finally:
            self._ops.counting = None

    @contextmanager
    def _compiling(self, *, new: bool) -> Iterator[None]:
        """Around a compiled part, which is one graph; ``new`` if it is compiled now."""
        began, ops = time.perf_counter(), self._ops
        if new:
            self.count()
        if ops is None or ops.counting is None:
            yield
            return
        ops.paused = True
        try:
            yield
        finally:
            ops.paused = False
        if new:
            ops.counting.add(int(1e6 * (time.perf_counter() - began)))

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        self.record("make_collectives", rank, size)
        from lsv_runtime.emulation.placement.launches import EmulatedGloo

        return EmulatedGloo(store, rank, size, timeout)

    def count(self) -> None:
        """Something is compiled."""
        if self._sealed:
            raise RuntimeError("Recompilation triggered with fail_on_recompile stance")
        self.compilations += 1


class _Compiled:
    """What ``torch.compile`` gives: compiles at the first call with arguments of another form. Modules of the same
    parameters are of one form.
    """

    def __init__(self, habana: FakeHabana, function: Function) -> None:
        self._habana, self._function, self._forms = habana, function, set[Any]()

    def __call__(self, *arguments: Any) -> Any:
        form = tuple(map(_form, arguments))
        new = form not in self._forms
        with self._habana._compiling(new=new):
            if new:
                self._forms.add(form)
            return self._function(*arguments)


def _form(value: Any) -> Any:
    """What a compiled function is compiled for: the types and shapes of all that its arguments are made of."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, torch.nn.Module):
        return type(value), tuple((name, _form(one)) for name, one in value.named_parameters())
    if isinstance(value, tuple):
        return tuple(map(_form, value))
    if is_dataclass(value):
        return type(value), tuple(_form(getattr(value, field.name)) for field in fields(value))
    return type(value)
