"""The table of an engine's orders, to which its parts add theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lsv.engine.orders.order import Drain, EngineOrders, Handler, ResetPrefixCache
from lsv.engine.parts.part import Part
from lsv_base.errors import BadRequest


def make_table(parts: Iterable[Part], reset_prefix_cache: Callable[[], None]) -> EngineOrders:
    """The orders of every engine and of its parts. Raises ``PluginError`` if two have the same name."""
    table = EngineOrders("the engine knows", BadRequest)
    table.add({ResetPrefixCache: Handler(lambda _: reset_prefix_cache())})
    table.add({Drain: Handler(lambda _: None)})  # waiting is all: ``Orders`` refuses new requests by itself
    for part in parts:
        table.add(part.orders)
    return table
