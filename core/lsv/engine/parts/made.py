"""Makes the parts of an engine."""

from __future__ import annotations

from lsv.engine.parts.part import Host, Part, PartContext
from lsv.plugins.catalog import Catalog
from lsv.plugins.parts import load_parts


def make_parts(catalog: Catalog, engine: Host) -> list[Part]:
    """The parts of an engine. Raises ``PluginError``."""
    return load_parts(catalog, "load", Part, PartContext(engine.config, engine.now, engine, catalog))
