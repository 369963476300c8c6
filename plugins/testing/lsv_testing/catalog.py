"""A catalog over given manifests, without looking for installed plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lsv.plugins.catalog import Catalog


class Manifests:
    """The hooks of manifest modules, or of anything else with ``lsv_*`` functions; errors are raised at once."""

    def __init__(self, manifests: Sequence[Any]) -> None:
        self._manifests = manifests

    def implementations(self, hook: str) -> Iterable[tuple[str, Any]]:
        for number, manifest in enumerate(self._manifests):
            if hasattr(manifest, hook):
                yield getattr(manifest, "__name__", f"manifest {number}"), getattr(manifest, hook)

    def watching(self) -> AbstractContextManager[Callable[[str], None]]:
        return nullcontext(lambda what: None)

    def blame(self, plugin: str, error: Exception) -> None:
        raise error

    def is_own(self, plugin: str) -> bool:
        return True

    def suspects(self) -> Sequence[str]:
        return ()

    def first_cause(self) -> Exception | None:
        return None


def catalog_of(*manifests: Any) -> Catalog:
    """The catalog of what ``manifests`` declare."""
    return Catalog(Manifests(manifests))
