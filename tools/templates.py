"""Published chat templates: which parsers are chosen for them, and whether these read back what the templates write.

    python tools/templates.py PLACE            compare with templates.tsv; exit code 1 where they differ
    python tools/templates.py PLACE --write    renew templates.tsv, and the table in docs/tools.md

PLACE is a folder with ``*.jinja``: ``make test-templates`` fetches llama.cpp's.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lsv import plugins
from lsv.offers import AnswerParserOffer, ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import Catalog
from lsv.text.chat_template import ChatTemplates
from lsv.text.round_trip import RoundTrip, Written, read_back, write_answers, write_calls
from lsv_api.parsers.choice import AnswerParsers

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".tsv")
DOCUMENT = ROOT / "docs" / "tools.md"
BEGIN, END = "<!-- families: tools/templates.py -->", "<!-- end of families -->"
_NAMED = {"bos_token": "<BOS>", "eos_token": "<EOS>", "pad_token": "<PAD>", "unk_token": "<UNK>"}
_ARCHITECTURES = {"MiniMax-M1": "MiniMaxM1ForCausalLM", "Phi-3.5": "Phi3ForCausalLM"}
"""Architectures of templates whose text does not reveal the family."""
_ANY = "LlamaForCausalLM"


class Family(NamedTuple):
    """The result for one template."""

    template: str
    thoughts: str
    calls: str
    read: str
    """The cases that the parser of calls reads back."""
    unread: str
    derived: str
    """The cases that the derived parser alone reads back."""


def read_templates(place: Path) -> Iterator[tuple[str, str]]:
    """Names and sources, by name."""
    for file in sorted(place.glob("*.jinja")):
        yield file.stem, file.read_text(encoding="utf-8")


def try_family(catalog: Catalog, name: str, source: str) -> Family:
    """Choose parsers as a server does, and read back."""
    chat = ChatTemplates({"default": source}, _NAMED)

    def render(messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]], prompt: bool) -> str:
        return chat.render(messages, tools=tools, add_generation_prompt=prompt)

    write = partial(write_answers, render)
    architecture = next((found for part, found in _ARCHITECTURES.items() if part in name), _ANY)
    parsers = AnswerParsers(catalog, source, architecture, write)
    thoughts, calls = parsers.choose_thoughts(None), None
    calls = parsers.choose_calls(None, thoughts.parser)
    written = write_calls(write)
    make_thoughts = None if thoughts.parser is None else thoughts.parser.make

    def read(offer: ToolParserOffer) -> RoundTrip:
        parser = parsers.find(offer)
        return RoundTrip() if parser is None else read_back(written, parser.make, make_thoughts)

    trip = RoundTrip() if calls.offer is None else read(calls.offer)
    (derived,) = (read(offer) for offer in catalog.offers(ToolParserOffer) if offer.derives)
    return Family(
        name, _name(thoughts.offer), _name(calls.offer), ", ".join(trip.held), _unread(written, trip),
        ", ".join(derived.held),
    )  # fmt: skip


def _name(offer: AnswerParserOffer | None) -> str:
    return "none" if offer is None else offer.name


def _unread(written: Sequence[Written], trip: RoundTrip) -> str:
    return ", ".join(one.name for one in written if one.name not in trip.held)


def write_table(families: Sequence[Family]) -> str:
    """The families as tab-separated values."""
    out = io.StringIO()
    writer = csv.writer(out, dialect="excel-tab", lineterminator="\n")
    writer.writerows((Family._fields, *families))
    return out.getvalue()


def read_table() -> list[Family]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Family(*row) for row in csv.reader(file, dialect="excel-tab")][1:]


def describe(families: Sequence[Family], catalog: Catalog) -> str:
    """The table of the document: templates with the cases that were read back, and parsers without a template."""
    rows = ["| chat template | marks of calls | calls | thoughts | what is read back |", "|---|---|---|---|---|"]
    marks = {offer.name: " … ".join(offer.marks[:2]) for offer in catalog.offers(ToolParserOffer)}
    for family in families:
        shown = _code(marks.get(family.calls, "")) if family.read else ""
        proof = family.read or "the template writes no calls that lsv understands"
        proof += f"; not {family.unread}" if family.unread else ""
        rows.append(f"| {family.template} | {shown} | {_code(family.calls)} | {_code(family.thoughts)} | {proof} |")
    proved = {name for family in families if family.read for name in (family.calls, family.thoughts)}
    rest = [
        offer.name
        for kind in (ToolParserOffer, ReasoningParserOffer)
        for offer in catalog.offers(kind)
        if offer.name not in proved and not offer.derives
    ]
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(rest))
    return "\n".join(
        (*rows, "", f"These templates do not exercise {names}, which tests check on sample answers instead.")
    )


def _code(text: str) -> str:
    shown = text.replace("|", "\\|").replace("\n", " ")
    return f"`{shown}`" if shown and shown != "none" else shown


def put_into(document: str, table: str) -> str:
    """The document with the table inserted between its markers."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    place, write = Path(arguments[0]), "--write" in arguments
    catalog = plugins.load(None).catalog
    families = [try_family(catalog, name, source) for name, source in read_templates(place)]
    if not families:
        print(f"{place} holds no chat templates")
        return 1
    if write:
        TABLE.write_text(write_table(families), encoding="utf-8")
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(put_into(document, describe(families, catalog)), encoding="utf-8")
    known = {family.template: family for family in read_table()}
    wrong = [family for family in families if known.get(family.template) != family]
    for family in wrong:
        print(f"{family.template}: {family} instead of {known.get(family.template)}")
    read = sum(bool(family.read) and not family.unread for family in families)
    calls = sum(bool(family.read or family.unread) for family in families)
    print(f"{len(families)} templates, {calls} write calls, of {read} all forms are read; {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
