"""Parsers of answers: by the names that operators give, or by the model's chat template and architecture."""

from __future__ import annotations

from typing import TypeVar

from lsv.offers import AnswerParserOffer, ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import KINDS, Catalog

Offer = TypeVar("Offer", ToolParserOffer, ReasoningParserOffer)

NONE = "none"
"""The name that asks for no parser."""


def find_parser(catalog: Catalog, kind: type[Offer], name: str) -> Offer:
    """The parser called ``name``, which may be an alias. Raises ``ConfigError`` that names the known ones."""
    for offer in catalog.offers(kind):
        if name in offer.aliases:
            return offer
    return catalog.find(kind, name)


def choose_parser(
    catalog: Catalog, kind: type[Offer], *, named: str | None, template: str, architecture: str
) -> tuple[Offer | None, str]:
    """The parser for a model, and why; None where there is none.

    Among those whose texts all stand in the chat ``template``, one that names the architecture goes before one that
    does not, and then the one with more text. Raises ``ConfigError`` for an unknown name.
    """
    if named == NONE:
        return None, "turned off"
    if named is not None:
        return find_parser(catalog, kind, named), "named by an option"
    fitting = [offer for offer in catalog.offers(kind) if _fits(offer, template, architecture)]
    if not fitting:
        return None, f"no {KINDS[kind].noun} knows the chat template"
    best = max(fitting, key=_weight)
    why = f"the chat template has {' and '.join(best.templates)}"
    return best, f"{why}, and the architecture is {architecture}" if best.architectures else why


def _fits(offer: AnswerParserOffer, template: str, architecture: str) -> bool:
    if not offer.templates or (offer.architectures and architecture not in offer.architectures):
        return False
    return all(text in template for text in offer.templates)


def _weight(offer: AnswerParserOffer) -> tuple[bool, int]:
    return bool(offer.architectures), sum(map(len, offer.templates))
