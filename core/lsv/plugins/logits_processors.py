"""Logits processors by the names that requests ask for them by, and the arguments they ask with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.errors import BadRequest, ConfigError, PluginError
from lsv.offers import LogitsProcessorOffer, load_object
from lsv.plugins.catalog import Catalog

_PARAM = "logits_processors"


def check_processors(catalog: Catalog, asked: Mapping[str, Any]) -> None:
    """Raises ``BadRequest`` where a request asks for a processor that nobody offers, or with unfit arguments."""
    for name, arguments in asked.items():
        read_arguments(find_processor(catalog, name), arguments)


def find_processor(catalog: Catalog, name: str) -> LogitsProcessorOffer:
    """Raises ``BadRequest`` that names the known ones, ``PluginError`` where two plugins offer the name."""
    try:
        return catalog.find(LogitsProcessorOffer, name)
    except ConfigError as unknown:
        raise BadRequest(f"{_PARAM}: {unknown.message}", param=_PARAM) from None


def read_arguments(offer: LogitsProcessorOffer, arguments: Any) -> Any:
    """The arguments as the offer's type; raises ``BadRequest`` where they are not."""
    if offer.arguments is None:
        return arguments
    try:
        kind = load_object(offer.arguments)
    except Exception as cause:
        raise PluginError(
            f"the arguments of logits processor {offer.name!r} can't be loaded from {offer.arguments}: {cause}"
        ) from cause
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as cause:
        raise BadRequest(f"{_PARAM}: {offer.name}: {cause}", param=_PARAM) from None
