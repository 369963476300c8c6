"""Chooses the parsers of a model's answers by checking that they read back what its chat template writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple

from lsv.offers import AnswerParserOffer, ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import KINDS, Catalog
from lsv.text.answer_parser import CallGrammar, ModelParser
from lsv.text.round_trip import Case, RoundTrip, Schemas, Write, Written, force_calls, read_back, write_calls
from lsv_api.parsers.finding import Offer, choose_parser
from lsv_base.errors import ConfigError


class Choice(NamedTuple, Generic[Offer]):
    """The parser chosen for a model, or None, with the reason."""

    offer: Offer | None
    parser: ModelParser | None
    why: str


class AnswerParsers:
    """Chooses the parsers of one model.

    ``template`` is the source of its chat template, empty if it has none; ``write`` renders answers with it.
    """

    def __init__(self, catalog: Catalog, template: str, architecture: str, write: Write) -> None:
        self._catalog = catalog
        self._template = template
        self._architecture = architecture
        self._write = write if template else _write_nothing
        self._derived: dict[str, ModelParser | None] = {}

    def choose_thoughts(self, named: str | None) -> Choice[ReasoningParserOffer]:
        """Choose the parser of thoughts: one that knows the template, or else one derived from it.

        Raises ``ConfigError`` for an unknown name, or if a named parser can't be derived.
        """
        kind = ReasoningParserOffer
        offer, why = choose_parser(
            self._catalog, kind, named=named, template=self._template, architecture=self._architecture
        )
        if offer is None and named is None:
            for other in self._catalog.offers(kind):
                if other.derives and (derived := self.find(other)) is not None:
                    return Choice(other, derived, f"the chat template has {' and '.join(derived.marks)}")
        return Choice(offer, None if offer is None else self._make(offer), why)

    def choose_calls(self, named: str | None, thoughts: ModelParser | None) -> Choice[ToolParserOffer]:
        """Choose the parser of calls. After ``thoughts``, it must read back the calls that the chat template writes.

        Raises as ``choose_thoughts``.
        """
        written = write_calls(self._write)
        make_thoughts = None if thoughts is None else thoughts.make

        def try_out(offer: ToolParserOffer) -> RoundTrip:
            parser = self.find(offer)
            if parser is None:
                return RoundTrip(failed=[one.name for one in written])
            return read_back(written, parser.make, make_thoughts)

        offer, why = choose_parser(
            self._catalog, ToolParserOffer, named=named, template=self._template, architecture=self._architecture,
            try_out=try_out,
        )  # fmt: skip
        return Choice(offer, None if offer is None else self._make(offer), why)

    def derive_grammar(self, calls: ModelParser, thoughts: ModelParser | None) -> CallGrammar | None:
        """Derive a grammar of calls from the chat template.

        None if the template's calls are not understood, or if ``calls`` can't read them at the beginning of an answer
        and after ``thoughts``.
        """
        make_thoughts = None if thoughts is None else thoughts.make
        for offer in self._catalog.offers(ToolParserOffer):
            derived = self.find(offer) if offer.derives else None
            if derived is None or derived.grammar is None:
                continue
            forced = force_calls(write_calls(self._write), derived.grammar.open, make_thoughts)
            if read_back(forced, calls.make, make_thoughts).proves:
                return derived.grammar
        return None

    def find(self, offer: AnswerParserOffer) -> ModelParser | None:
        """The parser of an offer; None if it can't be derived."""
        if not offer.derives:
            return ModelParser(self._catalog.load(offer), offer.marks)
        if offer.load not in self._derived:
            self._derived[offer.load] = self._catalog.load(offer)(self._write)
        return self._derived[offer.load]

    def _make(self, offer: AnswerParserOffer) -> ModelParser:
        found = self.find(offer)
        if found is None:
            raise ConfigError(
                f"no {KINDS[type(offer)].noun} can be derived from this chat template; name another one than "
                f"{offer.name}, or leave the option out"
            )
        return found


def _write_nothing(cases: Mapping[str, Case], schemas: Schemas) -> Sequence[Written]:
    """For a model without a chat template."""
    return ()
