"""Orders to load and to unload adapters."""

from __future__ import annotations

from concurrent.futures import Future

from lsv.adapters.registry import AdapterRegistry
from lsv.engine.orders.order import Handler, Handlers, Order
from lsv.errors import LsvError
from lsv.request.adapter import Adapter


class LoadAdapter(Order, frozen=True):
    """Serve an adapter by a name. ``BadRequest`` refuses an adapter that can't be served, and a taken name."""

    name: str

    path: str
    """The adapter's folder."""

    replace: bool = False
    """Whether an adapter that has the name loses it."""


class UnloadAdapter(Order, frozen=True):
    """Serve an adapter no more, except to requests that have begun. ``ModelNotFound`` refuses an unknown name."""

    name: str


def handle_adapters(registry: AdapterRegistry) -> Handlers:
    """The handlers of both orders."""

    def load(order: LoadAdapter) -> Future[None]:
        loaded: Future[None] = Future()

        def settle(adapter: Adapter | None, error: LsvError | None) -> None:
            if error is None:
                loaded.set_result(None)
            else:
                loaded.set_exception(error)

        registry.begin(order.name, order.path, settle, replace=order.replace)
        return loaded

    def unload(order: UnloadAdapter) -> None:
        registry.unload(order.name)

    return {LoadAdapter: Handler(load), UnloadAdapter: Handler(unload)}
