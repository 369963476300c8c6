"""The xpu platform without a GPU: its own code on an emulated device, with ``torch.xpu`` answered by a strict fake."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lsv.capabilities import DeviceInfo
from lsv.config import EngineConfig, OptionValue
from lsv_base.errors import ConfigError
from lsv_runtime.devices.communicator import Group
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.fakes import FakeCapturing, FakeGraph, emulated_device
from lsv_xpu import libraries
from lsv_xpu.devices_table import Model, by_short_name
from lsv_xpu.platform import XpuPlatform
from lsv_xpu.probe import describe

if TYPE_CHECKING:
    import torch

    from lsv_runtime.emulation.recording import Method
    from lsv_xpu.runtime import Vendor

log = logging.getLogger(__name__)

DEVICES, MODEL, MEMORY = 2, "B60", 8.0
"""What is emulated unless settings say otherwise: how many devices, which, and the GiB of host memory of each."""

GRAPH_ROWS, GRAPH_TOKENS = 16, 64

_DRIVER = "emulated"
_GIB = 1 << 30


class EmulatedXpuPlatform(XpuPlatform):
    """Kernels written for GPUs run where they are asked for by name, in their interpreter: plain torch comes first."""

    attention: Sequence[str] = ("torch-paged", "triton-paged")

    def devices(self) -> Sequence[DeviceInfo]:
        return self.emulated_devices({})

    def emulated_devices(self, options: Mapping[str, OptionValue]) -> Sequence[DeviceInfo]:
        model, total = _emulated(options)
        return tuple(emulated_info(index, model, total) for index in range(_count(options)))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        """Graphs have at most ``GRAPH_ROWS`` rows or ``GRAPH_TOKENS`` tokens: all that they remember lies in the host's
        memory.
        """
        from lsv_runtime.emulation.placement.launches import watch_interpreter

        interprets = bool(watch_interpreter()) and bool(options.get("triton.interpret"))
        libraries.emulate(str(options.get("xpu.emulated_kernels") or "none"))
        most = {"xpu.graph_rows": GRAPH_ROWS, "xpu.graph_tokens": GRAPH_TOKENS}
        asked = {name: options.get(name) for name in most}
        graphs = {name: size if asked[name] is None else min(int(asked[name]), size) for name, size in most.items()}
        device = super().open(index, {**options, **graphs})
        device.compiles_late = interprets
        log.warning("EMULATED: %s is not there; this process's CPU computes, and speeds mean nothing", device.info.name)
        return device

    def _info_of(self, config: EngineConfig) -> DeviceInfo:
        model, total = _emulated(config.options)
        return emulated_info(config.device, model, total)

    def references(self, info: DeviceInfo) -> Mapping[str, float]:
        """None: what the host's CPU attains is compared with no card."""
        return {}

    def _vendor(self, options: Mapping[str, OptionValue]) -> Vendor:
        model, total = _emulated(options)
        return FakeVendor(model, count=_count(options), total=total)


def _emulated(options: Mapping[str, OptionValue]) -> tuple[Model, int]:
    """The requested model of GPU, and its memory in bytes. Raises ``ConfigError`` for an unknown model."""
    try:
        model = by_short_name(str(options.get("xpu.emulated_model") or MODEL))
    except ValueError as unknown:
        raise ConfigError(f"xpu-emulated-model {unknown}", param="xpu.emulated_model") from None
    return model, int(float(options.get("xpu.emulated_memory") or MEMORY) * _GIB)


def _count(options: Mapping[str, OptionValue]) -> int:
    return int(options.get("xpu.emulated_devices") or DEVICES)


def emulated_info(index: int, model: Model, total: int) -> DeviceInfo:
    return describe(index, model.name, model.ids[0], total, _DRIVER)


class FakeVendor:
    """Answers as torch's build for Intel GPUs would, for ``count`` devices of one model with ``total`` bytes each."""

    def __init__(self, model: Model, *, count: int, total: int) -> None:
        self.runtime = FakeXpu(model, count, total)
        self.make_graph: Callable[[], Any] | None = self.runtime.XPUGraph

    def torch_device(self, index: int) -> torch.device:
        return emulated_device(index)

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        from lsv_runtime.emulation.placement.launches import EmulatedGloo

        return EmulatedGloo(store, rank, size, timeout)

    def try_links(self, group: Group, index: int, variables: Mapping[str, str], seconds: float) -> str | None:
        """The trial that a child process runs on devices, in this one."""
        from lsv_base.errors import ConfigError
        from lsv_runtime.devices.collectives import BackendCommunicator
        from lsv_xpu.trial import check_links

        where = self.torch_device(index)
        communicator = BackendCommunicator(group, self.make_collectives, where)
        try:
            check_links(communicator, where)
        except ConfigError as wrong:
            return wrong.message
        finally:
            communicator.close()
        return None


class FakeXpu(FakeCapturing):
    """Answers as ``torch.xpu`` of torch 2.13 does."""

    library = "torch.xpu"

    def __init__(self, model: Model, count: int, total: int) -> None:
        super().__init__(count, total)
        self._model = model

    def get_device_properties(self, index: int, /) -> SimpleNamespace:
        self._check("get_device_properties", index)
        name, device_id = f"Intel(R) {self._model.name} (emulated)", self._model.ids[0]
        return SimpleNamespace(name=name, device_id=device_id, total_memory=self._total, driver_version=_DRIVER)

    def can_device_access_peer(self, device: int, peer: int, /) -> bool:
        self._check("can_device_access_peer", device, peer)
        return "peer_access" not in self._model.lacks

    def XPUGraph(self) -> FakeGraph:
        self.record("XPUGraph")
        return FakeGraph(self)

    def _outside(self) -> Sequence[Method]:
        from lsv_runtime.emulation.placement.launches import watch_interpreter

        return [*watch_interpreter(), *libraries.opaque_calls()]
