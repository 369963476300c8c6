"""LoRA adapters: requests wait for theirs to be read."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from lsv.adapters.registry import AdapterRegistry
from lsv.config import Fit
from lsv.engine.messages import Adapters
from lsv.engine.orders.adapters import LoadAdapter, UnloadAdapter
from lsv.engine.orders.order import Handler
from lsv.engine.parts.part import Part, PartContext
from lsv.request.adapter import Adapter
from lsv.request.group import RequestGroup
from lsv_base.errors import LsvError, Unavailable


def make_adapters(context: PartContext) -> AdaptersPart:
    """The part of an engine that serves adapters, or that refuses all of them by name."""
    engine = context.engine
    return AdaptersPart(AdapterRegistry(context.config, engine.control, lambda: engine.scheduler.adapters))


class AdaptersPart(Part):
    """Finds the adapter that a request names, in a registry."""

    name = "adapter"

    def __init__(self, registry: AdapterRegistry) -> None:
        self.registry = registry
        self._ended: list[tuple[int, LsvError | None]] = []
        """Groups whose adapters have been read, or could not be."""
        self.orders = {
            LoadAdapter: Handler(self._load),
            UnloadAdapter: Handler(lambda order: registry.unload(order.name)),
        }

    def start(self, fit: Fit) -> None:
        """Load the adapters that the engine starts with. Raises ``CheckpointError``."""
        self.registry.start()

    def interrupt(self) -> None:
        self.registry.interrupt(Unavailable("the engine was put to sleep while the adapter was read"))

    def notice(self) -> Adapters:
        return Adapters(self.registry.listed)

    def open(self, group: RequestGroup) -> bool:
        """Let a group wait for an adapter that must first be read; a beam search waits here.

        Raises ``ModelNotFound``, and for a search what refuses the adapter.
        """

        def take(adapter: Adapter | None, error: LsvError | None) -> None:
            group.adapter = adapter
            self._ended.append((group.id, error))

        if not group.spec.adapter:
            return False
        group.adapter = self.registry.find(group.spec.adapter, None if group.spec.searched else take)
        return group.adapter is None

    @property
    def busy(self) -> bool:
        return self.registry.busy or bool(self._ended)

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        if self.registry.busy:
            self.registry.advance()
        ended, self._ended = self._ended, []
        return ended

    def _load(self, order: LoadAdapter) -> Future[None]:
        loaded: Future[None] = Future()

        def settle(adapter: Adapter | None, error: LsvError | None) -> None:
            if error is None:
                loaded.set_result(None)
            else:
                loaded.set_exception(error)

        self.registry.begin(order.name, order.path, settle, replace=order.replace)
        return loaded
