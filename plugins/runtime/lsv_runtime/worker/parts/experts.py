"""Counts which experts are chosen, and moves them between the ranks of a stage."""

from __future__ import annotations

from collections.abc import Mapping

from lsv.engine.executor import BalanceExperts, CountExperts
from lsv_runtime.devices.device import Device
from lsv_runtime.worker.experts.balancer import ExpertBalancer
from lsv_runtime.worker.load.loaded import Loaded
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_runtime.worker.parts.part import WorkerPart, WorkerPartContext


def make_experts(context: WorkerPartContext) -> ExpertsPart | None:
    """None where experts stay where they are."""
    options = context.config.experts
    return None if options is None or not options.interval else ExpertsPart()


class ExpertsPart(WorkerPart):
    """Has the balancer of the loaded model do what the engine says."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._loaded: Loaded | None = None
        self._balancer: ExpertBalancer | None = None
        self.orders = {CountExperts: lambda _: self._balancing.count(), BalanceExperts: lambda _: self._balance()}

    def load(self, resident: ResidentModel) -> None:
        """Begin anew, unless the same weights have only slept. Raises ``ConfigError``."""
        loaded, device, spread = resident.loaded, resident.device, resident.groups.spread
        if loaded is not self._loaded and spread is not None:
            self._balancer = ExpertBalancer(loaded.declared.model, spread, device.torch_device)
        self._loaded, self._device = loaded, device

    def sleep(self, level: int) -> None:
        if level > 1:
            self._loaded = self._balancer = None

    @property
    def _balancing(self) -> ExpertBalancer:
        assert self._balancer is not None, "no other rank has experts"
        return self._balancer

    def _balance(self) -> Mapping[str, float]:
        assert self._device is not None, "no model is loaded"
        self._device.synchronize()
        return self._balancing.balance()
