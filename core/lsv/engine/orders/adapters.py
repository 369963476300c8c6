"""Orders to load and to unload adapters."""

from __future__ import annotations

from lsv.engine.orders.order import Order


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
