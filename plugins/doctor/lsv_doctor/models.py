"""``lsv models``: which architectures run here, natively or through the generic adapter."""

from __future__ import annotations

import msgspec

from lsv.cli.context import JSON, CommandContext
from lsv.offers import ModelAlias, ModelOffer

_ANY_OTHER = "any other decoder-only architecture of transformers"


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="none", extra=(JSON,))
    catalog = context.plugins.catalog
    offers = catalog.offers(ModelOffer)
    if settings["json"]:
        rows = [{**msgspec.to_builtins(offer), "plugin": catalog.provider(offer)} for offer in offers]
        context.console.print_json(data=rows)
        return 0
    from rich.table import Table

    table = Table("model", "architectures", "tasks", "input", "plugin")
    for offer in offers:
        names = _ANY_OTHER if offer.fallback else ", ".join(offer.architectures)
        tasks, modalities = ", ".join(offer.tasks), ", ".join(offer.modalities)
        table.add_row(offer.name, names, tasks, modalities, catalog.provider(offer))
    context.console.print(table)
    for alias in catalog.offers(ModelAlias):
        note = " (served when no model is named)" if alias.default else ""
        context.console.print(f"ships with lsv: {alias.name}{note}")
    return 0
