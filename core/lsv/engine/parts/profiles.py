"""Profiles: orders to start and to stop them."""

from __future__ import annotations

from collections.abc import Callable

from lsv.config import EngineConfig
from lsv.engine.executor import StartProfiler, StopProfiler
from lsv.engine.orders.order import Handler, Order
from lsv.engine.parts.part import Part, PartContext
from lsv_base.errors import BadRequest
from lsv_base.processes.orders import WorkerOrder


class StartProfile(Order, frozen=True):
    """Record a profile. ``BadRequest`` refuses it if profiles are not enabled, or one is being recorded."""

    announces = "profiling"


class StopProfile(Order, frozen=True):
    """Write the recorded profile. ``BadRequest`` refuses it if profiles are not enabled, or none is being recorded."""

    announces = "profiling"


def make_profiles(context: PartContext) -> ProfilesPart:
    """The part that records, or that refuses to by name."""
    return ProfilesPart(context.config, context.engine.control)


class ProfilesPart(Part):
    """Has the workers record."""

    name = "profiles"

    def __init__(self, config: EngineConfig, control: Callable[[WorkerOrder], object]) -> None:
        self._enabled = config.profiling is not None
        self._control = control
        self.orders = {
            StartProfile: Handler(lambda _: self._pass_on(StartProfiler())),
            StopProfile: Handler(lambda _: self._pass_on(StopProfiler())),
        }

    def _pass_on(self, order: WorkerOrder) -> None:
        if not self._enabled:
            raise BadRequest(
                "profiles are not enabled: start with --torch-profiler-dir FOLDER, or with --profiler-config"
            )
        self._control(order)
