"""LoRA adapters: requests wait for theirs to be read."""

from __future__ import annotations

from collections.abc import Iterable

from lsv.adapters.registry import AdapterRegistry
from lsv.config import Fit
from lsv.engine.orders.adapters import handle_adapters
from lsv.engine.parts.part import Part
from lsv.errors import LsvError
from lsv.request.adapter import Adapter
from lsv.request.group import RequestGroup


class AdaptersPart(Part):
    """Finds the adapter that a request names, in a registry."""

    name = "adapter"

    def __init__(self, registry: AdapterRegistry) -> None:
        self._registry = registry
        self._ended: list[tuple[int, LsvError | None]] = []
        """Groups whose adapters have been read, or could not be."""
        self.orders = handle_adapters(registry)

    def start(self, fit: Fit) -> None:
        """Load the adapters that the engine starts with. Raises ``CheckpointError``."""
        self._registry.start()

    def open(self, group: RequestGroup) -> bool:
        """Let a group wait for an adapter that must first be read; a beam search waits here.

        Raises ``ModelNotFound``, and for a search what refuses the adapter.
        """

        def take(adapter: Adapter | None, error: LsvError | None) -> None:
            group.adapter = adapter
            self._ended.append((group.id, error))

        if not group.spec.adapter:
            return False
        group.adapter = self._registry.find(group.spec.adapter, None if group.spec.searched else take)
        return group.adapter is None

    @property
    def busy(self) -> bool:
        return self._registry.busy or bool(self._ended)

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        if self._registry.busy:
            self._registry.advance()
        ended, self._ended = self._ended, []
        return ended
