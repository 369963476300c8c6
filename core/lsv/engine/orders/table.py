"""The table of an engine's orders, to which its parts add theirs."""

from __future__ import annotations

from collections.abc import Callable

from lsv.engine.orders.order import Drain, EngineOrders, Handler, ResetPrefixCache
from lsv.engine.orders.sleep import SleepState
from lsv.errors import BadRequest


def make_table(sleep: SleepState, reset_prefix_cache: Callable[[], None]) -> EngineOrders:
    """The orders that every engine knows."""
    table = EngineOrders("the engine knows", BadRequest)
    table.add({ResetPrefixCache: Handler(lambda _: reset_prefix_cache())})
    table.add({Drain: Handler(lambda _: None)})  # waiting is all: ``Orders`` refuses new requests by itself
    table.add(sleep.orders)
    return table
