"""Grammar back ends by the names that requests ask for them by."""

from __future__ import annotations

from lsv.config import Choices
from lsv.offers import GrammarOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import BadRequest, ConfigError

_PARAM = "structured_outputs"
_ANY = "auto"


def choose_backend(catalog: Catalog, name: str, choices: Choices) -> str | None:
    """The back end that an operator wants: for ``"auto"`` the best one, None where there is none.

    Raises ``ConfigError`` for a name that nobody offers.
    """
    if name != _ANY:
        found = _find(catalog, name).name
        if found != name:
            choices.note("guided_decoding_backend", found, f"it does the work of {name}")
        return found
    best = max(catalog.offers(GrammarOffer), key=lambda offer: offer.rank, default=None)
    return None if best is None else best.name


def find_backend(catalog: Catalog, name: str | None, default: str | None) -> GrammarOffer:
    """The back end that a request wants; ``default`` for None and ``"auto"``. Raises ``BadRequest`` without one."""
    wanted = default if name is None or name == _ANY else name
    if wanted is None:
        raise BadRequest(f"{_PARAM}: no plugin that is loaded offers a grammar back end", param=_PARAM)
    try:
        return _find(catalog, wanted)
    except ConfigError as unknown:
        raise BadRequest(f"{_PARAM}: {unknown.message}", param=_PARAM) from None


def _find(catalog: Catalog, name: str) -> GrammarOffer:
    offers = catalog.offers(GrammarOffer)
    if any(offer.name == name for offer in offers):
        return catalog.find(GrammarOffer, name)
    standing_in = (offer for offer in offers if name in offer.aliases)
    return max(standing_in, key=lambda offer: offer.rank, default=None) or catalog.find(GrammarOffer, name)
