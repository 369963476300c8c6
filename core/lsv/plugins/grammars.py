"""Grammar back ends by the names that requests ask for them by."""

from __future__ import annotations

from lsv.errors import BadRequest, ConfigError
from lsv.offers import GrammarOffer
from lsv.plugins.catalog import Catalog

_PARAM = "structured_outputs"
_ANY = "auto"


def find_backend(catalog: Catalog, name: str | None) -> GrammarOffer:
    """The back end of that name; the best one for None and ``"auto"``. Raises ``BadRequest`` where there is none."""
    offers = catalog.offers(GrammarOffer)
    if not offers:
        raise BadRequest(f"{_PARAM}: no plugin that is loaded offers a grammar back end", param=_PARAM)
    if name is None or name == _ANY:
        return max(offers, key=lambda offer: offer.rank)
    try:
        return catalog.find(GrammarOffer, name)
    except ConfigError as unknown:
        raise BadRequest(f"{_PARAM}: {unknown.message}", param=_PARAM) from None
