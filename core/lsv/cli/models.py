"""``lsv models``: which architectures run here, natively or through the generic adapter."""

from __future__ import annotations

from lsv.cli.context import CommandContext
from lsv.offers import ModelAlias, ModelOffer
from lsv.settings import Setting


def run(arguments: list[str], context: CommandContext) -> int:
    as_json = Setting(name="json", type="bool", default=False, help="print JSON", scope="all")
    settings = context.settings(arguments, scope="none", extra=(as_json,))
    catalog = context.plugins.catalog
    rows = [
        {
            "name": offer.name,
            "architectures": list(offer.architectures),
            "tasks": list(offer.tasks),
            "modalities": list(offer.modalities),
            "plugin": catalog.provider(offer),
            "fallback": offer.fallback,
        }
        for offer in catalog.offers(ModelOffer)
    ]
    if settings["json"]:
        context.console.print_json(data=rows)
        return 0
    from rich.table import Table

    table = Table("model", "architectures", "tasks", "input", "plugin")
    for row in rows:
        names = "any other decoder-only architecture of transformers" if row["fallback"] else ", ".join(row["architectures"])
        table.add_row(row["name"], names, ", ".join(row["tasks"]), ", ".join(row["modalities"]), row["plugin"])
    context.console.print(table)
    for alias in catalog.offers(ModelAlias):
        note = " (served when no model is named)" if alias.default else ""
        context.console.print(f"ships with lsv: {alias.name}{note}")
    return 0
