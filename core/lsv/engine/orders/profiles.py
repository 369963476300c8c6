"""Orders to start and to stop profiles."""

from __future__ import annotations

from collections.abc import Callable

from lsv.config import EngineConfig
from lsv.engine.executor import StartProfiler, StopProfiler
from lsv.engine.orders.order import Handler, Handlers, Order
from lsv.errors import BadRequest
from lsv.processes.orders import WorkerOrder


class StartProfile(Order, frozen=True):
    """Record a profile. ``BadRequest`` refuses it if profiles are not enabled, or one is being recorded."""

    announces = "profiling"


class StopProfile(Order, frozen=True):
    """Write the recorded profile. ``BadRequest`` refuses it if profiles are not enabled, or none is being recorded."""

    announces = "profiling"


def handle_profiles(config: EngineConfig, control: Callable[[WorkerOrder], object]) -> Handlers:
    """The handlers of both orders; ``control`` has workers carry out theirs."""

    def pass_on(order: WorkerOrder) -> Handler:
        def carry_out(_: Order) -> None:
            if config.profiling is None:
                raise BadRequest(
                    "profiles are not enabled: start with --torch-profiler-dir FOLDER, or with --profiler-config"
                )
            control(order)

        return Handler(carry_out)

    return {StartProfile: pass_on(StartProfiler()), StopProfile: pass_on(StopProfiler())}
