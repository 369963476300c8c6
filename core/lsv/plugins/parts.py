"""Loads the parts that plugins offer, for engines and for workers."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from lsv.offers import PartOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import PluginError

P = TypeVar("P")


def load_parts(catalog: Catalog, half: Literal["load", "worker"], base: type[P], context: Any) -> list[P]:
    """Make one half of each part, which derives from ``base``, in plugin order. Raises ``PluginError``."""
    made = []
    for offer in catalog.offers(PartOffer):
        path = getattr(offer, half)
        part = catalog.load(offer, half)(context) if path else None
        if isinstance(part, base):
            made.append(part)
        elif part is not None:
            raise PluginError(
                f"part {offer.name} of plugin {catalog.provider(offer)}: {path} made a {type(part).__name__}; it must "
                f"derive from {base.__module__}.{base.__name__}"
            )
    return made
