"""Parsers of answers: by the names that operators give, or by the model's chat template and architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from lsv.offers import AnswerParserOffer, ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import KINDS, Catalog

Offer = TypeVar("Offer", ToolParserOffer, ReasoningParserOffer)


class Trial(Protocol):
    """What comes of reading back with a parser what the chat template writes, and its text as the reason."""

    @property
    def proves(self) -> bool: ...

    @property
    def failed(self) -> Sequence[str]: ...


TryOut = Callable[[Offer], Trial]

NONE = "none"
"""The name that asks for no parser."""


def find_parser(catalog: Catalog, kind: type[Offer], name: str) -> Offer:
    """The parser called ``name``, which may be an alias. Raises ``ConfigError`` that names the known ones."""
    for offer in catalog.offers(kind):
        if name in offer.aliases:
            return offer
    return catalog.find(kind, name)


def choose_parser(
    catalog: Catalog,
    kind: type[Offer],
    *,
    named: str | None,
    template: str,
    architecture: str,
    try_out: TryOut[Offer] | None = None,
) -> tuple[Offer | None, str]:
    """The parser for a model, and why; None where there is none.

    Among those whose texts all stand in the chat ``template``, one that names the architecture goes before one that
    does not, and then the one with more text. With ``try_out`` the first one is taken that reads all that the template
    writes, and if none of them does, any other that does. A parser that was ``named`` is taken as it is. Raises
    ``ConfigError`` for an unknown name.
    """
    if named == NONE:
        return None, "turned off"
    if named is not None:
        offer = find_parser(catalog, kind, named)
        return offer, "named by an option" + (f"; {try_out(offer)}" if try_out else "")
    fitting = [offer for offer in catalog.offers(kind) if _fits(offer, template, architecture)]
    fitting.sort(key=_weight, reverse=True)
    trips = [try_out(offer) for offer in fitting] if try_out else []
    for offer, trip in zip(fitting, trips, strict=False):
        if trip.proves:
            return offer, f"{_tell_texts(offer, architecture)}; {trip}"
    if try_out and any(trip.failed for trip in trips):
        return _choose_by_proof(catalog, kind, fitting, trips, try_out)
    if not fitting:
        return None, f"no {KINDS[kind].noun} knows the chat template"
    return fitting[0], _tell_texts(fitting[0], architecture) + (f"; {trips[0]}" if trips else "")


def _choose_by_proof(
    catalog: Catalog, kind: type[Offer], fitting: Sequence[Offer], trips: Sequence[Trial], try_out: TryOut[Offer]
) -> tuple[Offer | None, str]:
    """A parser with marks of its own that reads what the template writes, although its texts are not there."""
    for offer in catalog.offers(kind):
        if offer.marks and offer not in fitting and (trip := try_out(offer)).proves:
            return offer, str(trip)
    told = "; ".join(f"{offer.name}: {trip}" for offer, trip in zip(fitting, trips, strict=True))
    return None, f"no {KINDS[kind].noun} reads what the chat template writes ({told})"


def _tell_texts(offer: AnswerParserOffer, architecture: str) -> str:
    why = f"the chat template has {' and '.join(offer.templates)}"
    return f"{why}, and the architecture is {architecture}" if offer.architectures else why


def _fits(offer: AnswerParserOffer, template: str, architecture: str) -> bool:
    if not offer.templates or (offer.architectures and architecture not in offer.architectures):
        return False
    return all(text in template for text in offer.templates)


def _weight(offer: AnswerParserOffer) -> tuple[bool, int]:
    return bool(offer.architectures), sum(map(len, offer.templates))
