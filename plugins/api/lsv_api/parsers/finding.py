"""Finds the parsers of answers, by the operator's option or by the model's chat template and architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from lsv.offers import AnswerParserOffer, ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import KINDS, Catalog

Offer = TypeVar("Offer", ToolParserOffer, ReasoningParserOffer)


class Trial(Protocol):
    """The result of checking that a parser reads back what the chat template writes. As text, it is the reason."""

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
    """Choose the parser for a model; returns it, or None, and the reason.

    Candidates are parsers whose texts are all in the chat ``template``. Parsers that name the architecture go first,
    then those with more text. With ``try_out``, the first candidate that reads back all that the template writes is
    chosen. If none does, other parsers with marks are tried, then one derived from the template. A ``named`` parser is
    chosen without a check. Raises ``ConfigError`` for an unknown name.
    """
    if named == NONE:
        return None, "turned off"
    if named is not None:
        offer = find_parser(catalog, kind, named)
        return offer, "set by an option" + (f"; {try_out(offer)}" if try_out else "")
    fitting = _fitting(catalog, kind, template, architecture)
    if try_out is None:
        return (fitting[0], _tell_texts(fitting[0], architecture)) if fitting else (None, _unknown(kind))
    trips: dict[str, Trial] = {}
    for candidate in fitting + _others(catalog, kind, fitting):
        trips[candidate.name] = trip = try_out(candidate)
        if trip.proves:
            why = f"{_tell_texts(candidate, architecture)}; {trip}" if candidate in fitting else str(trip)
            return candidate, why
    failed = [f"{one.name}: {trips[one.name]}" for one in fitting if trips[one.name].failed]
    if failed:
        return None, f"no {KINDS[kind].noun} can read what the chat template writes ({'; '.join(failed)})"
    if fitting:
        return fitting[0], f"{_tell_texts(fitting[0], architecture)}; {trips[fitting[0].name]}"
    return None, _unknown(kind)


def _others(catalog: Catalog, kind: type[Offer], fitting: Sequence[Offer]) -> list[Offer]:
    """Other parsers to try: those with their own marks, then derived ones."""
    offers = [offer for offer in catalog.offers(kind) if offer not in fitting and (offer.marks or offer.derives)]
    return sorted(offers, key=lambda offer: offer.derives)


def _unknown(kind: type[Offer]) -> str:
    return f"no {KINDS[kind].noun} recognises the chat template"


def _tell_texts(offer: AnswerParserOffer, architecture: str) -> str:
    why = f"the chat template has {' and '.join(offer.templates)}"
    return f"{why}, and the architecture is {architecture}" if offer.architectures else why


def _fitting(catalog: Catalog, kind: type[Offer], template: str, architecture: str) -> list[Offer]:
    """Parsers whose texts are in the template, the best first."""
    found = [offer for offer in catalog.offers(kind) if _fits(offer, template, architecture)]
    return sorted(found, key=_weight, reverse=True)


def _fits(offer: AnswerParserOffer, template: str, architecture: str) -> bool:
    if not offer.templates or (offer.architectures and architecture not in offer.architectures):
        return False
    return all(text in template for text in offer.templates)


def _weight(offer: AnswerParserOffer) -> tuple[bool, int]:
    return bool(offer.architectures), sum(map(len, offer.templates))
