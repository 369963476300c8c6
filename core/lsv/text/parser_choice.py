"""The parsers of one model's answers: what plugins offer, tried with what the chat template writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple

from lsv.errors import ConfigError
from lsv.offers import AnswerParserOffer, ReasoningParserOffer, ToolParserOffer
from lsv.plugins.answer_parsers import Offer, choose_parser
from lsv.plugins.catalog import KINDS, Catalog
from lsv.text.answer_parser import CallGrammar, ModelParser
from lsv.text.round_trip import Case, RoundTrip, Schemas, Write, Written, force_calls, read_back, write_calls


class Choice(NamedTuple, Generic[Offer]):
    """A parser for a model, and why it is the one; None where there is none."""

    offer: Offer | None
    parser: ModelParser | None
    why: str


class AnswerParsers:
    """The parsers of answers for one model: what plugins offer, tried with what its chat template writes.

    ``template`` is its source, empty where there is none; ``write`` renders answers with it.
    """

    def __init__(self, catalog: Catalog, template: str, architecture: str, write: Write) -> None:
        self._catalog = catalog
        self._template = template
        self._architecture = architecture
        self._write = write if template else _write_nothing
        self._derived: dict[str, ModelParser | None] = {}

    def choose_thoughts(self, named: str | None) -> Choice[ReasoningParserOffer]:
        """The parser of thoughts: one that knows the template, or else one that is derived from it. Raises
        ``ConfigError`` for an unknown name, and for one that can't be derived.
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
        """The parser of calls, which must read back what the chat template writes, after ``thoughts``. Raises as
        ``choose_thoughts`` does.
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
        """What holds a model to calls as its template writes them; None where these are not understood, or where
        ``calls`` does not read them at the beginning of an answer, and after ``thoughts``.
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
        """The parser of an offer; None for one that can't be derived."""
        if not offer.derives:
            return ModelParser(self._catalog.load(offer), offer.marks)
        if offer.load not in self._derived:
            self._derived[offer.load] = self._catalog.load(offer)(self._write)
        return self._derived[offer.load]

    def _make(self, offer: AnswerParserOffer) -> ModelParser:
        found = self.find(offer)
        if found is None:
            raise ConfigError(
                f"the chat template shows nothing that a {KINDS[type(offer)].noun} can be derived from; name another "
                f"than {offer.name}, or leave the option out"
            )
        return found


def _write_nothing(cases: Mapping[str, Case], schemas: Schemas) -> Sequence[Written]:
    """What a model without a chat template shows."""
    return ()
