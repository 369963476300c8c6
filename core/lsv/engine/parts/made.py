"""Makes the parts that plugins offer, those of core among them."""

from __future__ import annotations

from lsv.engine.parts.part import Host, Part, PartContext
from lsv.offers import PartOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import PluginError


def make_parts(catalog: Catalog, engine: Host) -> list[Part]:
    """The parts of an engine. Raises ``PluginError``."""
    context = PartContext(engine.config, engine.now, engine, catalog)
    made = []
    for offer in catalog.offers(PartOffer):
        if not offer.load:
            continue
        part = catalog.load(offer)(context)
        if isinstance(part, Part):
            made.append(part)
        elif part is not None:
            raise PluginError(
                f"part {offer.name} of plugin {catalog.provider(offer)}: {offer.load} made a {type(part).__name__}; it "
                f"must derive from {Part.__module__}.Part"
            )
    return made
