"""The table of an engine's orders, made of those of its features."""

from __future__ import annotations

from collections.abc import Callable

from lsv.adapters.registry import AdapterRegistry
from lsv.config import EngineConfig
from lsv.engine.orders.adapters import handle_adapters
from lsv.engine.orders.order import Drain, EngineOrders, Handler, ResetPrefixCache
from lsv.engine.orders.profiles import handle_profiles
from lsv.engine.orders.sleep import SleepState
from lsv.errors import BadRequest
from lsv.processes.orders import WorkerOrder


def make_table(
    config: EngineConfig,
    control: Callable[[WorkerOrder], object],
    sleep: SleepState,
    adapters: AdapterRegistry,
    reset_prefix_cache: Callable[[], None],
) -> EngineOrders:
    """The orders that an engine knows; ``control`` has workers carry out theirs."""
    table = EngineOrders("the engine knows", BadRequest)
    table.add({ResetPrefixCache: Handler(lambda _: reset_prefix_cache())})
    table.add({Drain: Handler(lambda _: None)})  # ``Orders`` takes no requests meanwhile, and there is no more to do
    for handlers in (sleep.orders, handle_adapters(adapters), handle_profiles(config, control)):
        table.add(handlers)
    return table
