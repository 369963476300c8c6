"""Orders to an engine beside its requests: the records that clients send, and the handlers that carry them out.

A feature declares an order by a subclass of ``Order`` and a ``Handler``, and the engine adds both to its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, ClassVar, Literal, NamedTuple

from lsv_base.processes.orders import OrderRecord, OrderTable


class Order(OrderRecord, frozen=True):
    """An order of a client, given by ``Client.order``."""

    when_idle: ClassVar[bool] = False
    """Whether the order waits until all requests have ended. The engine takes no new ones meanwhile."""

    while_loading: ClassVar[bool] = False
    """Whether an engine that is loading takes the order."""

    while_asleep: ClassVar[bool] = False
    """Whether a sleeping engine takes the order."""

    audience: ClassVar[Literal["ready", "alive"]] = "ready"
    """The replicas that get the order: those that take requests, or also those that sleep."""


class Drain(Order, frozen=True):
    """Take no new requests as long as the client is connected, and wait until all others have ended."""

    when_idle = True
    while_loading = True
    while_asleep = True


class ResetPrefixCache(Order, frozen=True):
    """Forget all cached prefixes."""

    while_asleep = True


def _accept(order: Any) -> None:
    """Nothing refuses the order."""


class Handler(NamedTuple):
    """The two halves of carrying out an order, which follow each other at once unless the order is ``when_idle``."""

    carry_out: Callable[[Any], Future[None] | None]
    """Carries out the order. Returns a future if the order ends later, between the engine's steps. Raises, or has the
    future raise, the ``LsvError`` that the order is refused with.
    """

    accept: Callable[[Any], None] = _accept
    """Raises the error that the order is refused with, before it waits."""


Handlers = Mapping[type[Order], Handler]
EngineOrders = OrderTable[Order, Handler]
