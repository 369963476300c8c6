"""How a model's answers are read: the parsers of its calls and of its thoughts, chosen when the server starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from lsv import plugins
from lsv.engine.client import Client
from lsv.errors import BadRequest
from lsv.offers import CallForm, ReasoningParserOffer, ToolParserOffer
from lsv.plugins.answer_parsers import TryOut, choose_parser, find_parser
from lsv.plugins.catalog import KINDS, Catalog
from lsv.plugins.files import add_file
from lsv.text.answer_parser import AnswerForm, AnswerParser
from lsv.text.round_trip import RoundTrip, read_back, write_calls
from lsv_api.options import ApiOptions
from lsv_api.schema_check import SchemaCheck

log = logging.getLogger("lsv.api")

Offer = TypeVar("Offer", ToolParserOffer, ReasoningParserOffer)
MakeParser = Callable[[AnswerForm], AnswerParser]


FORCED = "json"
"""The parser of answers whose form the server prescribes."""


class Parsing(msgspec.Struct, frozen=True):
    """The parsers of one model; None where there is none."""

    tools: MakeParser | None = None
    thoughts: MakeParser | None = None
    why_no_tools: str = ""
    """The reason to give where ``tools`` is None."""

    forced: MakeParser | None = None
    """Reads an answer that must be calls: a list of JSON objects."""

    form: CallForm | None = None
    """What grammars must know of the calls."""

    marks: frozenset[str] = frozenset()
    """What the parsers look for."""

    short_ids: bool = False
    """Whether ids of calls are nine letters and digits."""

    schemas: SchemaCheck | None = None
    """Finds the function whose parameters can't be followed."""


PLAIN = Parsing()
"""Answers are text."""


def choose_parsing(client: Client, options: ApiOptions) -> Parsing:
    """The parsers for a model's answers, which the log names with the reason. Raises ``ConfigError``."""
    catalog = _catalog(sorted({*client.config.plugins, "api"}) if client.config.plugins else None, options)
    template = _template(client, options)
    thoughts, _ = _choose(catalog, ReasoningParserOffer, options.reasoning_parser, template, client)
    tools, why = _choose_tools(catalog, thoughts, template, client, options)
    if tools is not None and tools.form is None:
        log.info(
            "%s: strict functions are held to their schemas where a call is forced, not with tool_choice auto: calls "
            "in the form of %s have no grammar",
            client.config.served_names[0],
            tools.name,
        )
    return Parsing(
        tools=None if tools is None else catalog.load(tools),
        thoughts=None if thoughts is None else catalog.load(thoughts),
        why_no_tools="" if tools is not None else why,
        forced=_forced(catalog),
        form=None if tools is None else tools.form,
        marks=frozenset(mark for offer in (tools, thoughts) if offer is not None for mark in offer.marks),
        short_ids=tools is not None and tools.short_ids,
        schemas=SchemaCheck(catalog, client.config.grammars),
    )


def check_parsers(options: ApiOptions, chosen: Sequence[str] | None = None) -> None:
    """Raises ``ConfigError`` for names of parsers that no plugin offers, and for a file that is no plugin."""
    catalog = _catalog(chosen, options)
    named: tuple[tuple[Any, str | None], ...] = (
        (ToolParserOffer, options.tool_call_parser),
        (ReasoningParserOffer, options.reasoning_parser),
    )
    for kind, name in named:
        if name not in (None, "none"):
            find_parser(catalog, kind, name)


def _catalog(chosen: Sequence[str] | None, options: ApiOptions) -> Catalog:
    loaded = plugins.load(chosen)
    if options.tool_parser_plugin is not None:
        add_file(loaded, options.tool_parser_plugin)
    return loaded.catalog


def _choose_tools(
    catalog: Catalog, thoughts: ReasoningParserOffer | None, template: str, client: Client, options: ApiOptions
) -> tuple[ToolParserOffer | None, str]:
    """The parser of calls, which must read back what the chat template writes."""

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        return client.tokenizer.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=prompt,
            template=options.chat_template,
            kwargs=options.default_chat_template_kwargs,
            content_format=options.content_format,
        )

    written = write_calls(render) if template else []
    make_thoughts = None if thoughts is None else catalog.load(thoughts)

    def try_out(offer: ToolParserOffer) -> RoundTrip:
        return read_back(written, catalog.load(offer), make_thoughts)

    return _choose(catalog, ToolParserOffer, options.tool_call_parser, template, client, try_out)


def _choose(
    catalog: Catalog,
    kind: type[Offer],
    named: str | None,
    template: str,
    client: Client,
    try_out: TryOut[Offer] | None = None,
) -> tuple[Offer | None, str]:
    architecture = client.config.architecture
    offer, why = choose_parser(
        catalog, kind, named=named, template=template, architecture=architecture, try_out=try_out
    )
    if offer is not None or named is not None or try_out is not None:
        noun = KINDS[kind].noun
        log.info("%s: %s is %s: %s", client.config.served_names[0], noun, offer.name if offer else "none", why)
    return offer, why


def _forced(catalog: Catalog) -> MakeParser | None:
    for offer in catalog.offers(ToolParserOffer):
        if offer.name == FORCED:
            make: MakeParser = catalog.load(offer)
            return make
    return None


def _template(client: Client, options: ApiOptions) -> str:
    """The chat template that requests with tools are rendered by; empty where there is none.

    Raises ``ConfigError`` for the name of one that the tokenizer does not have.
    """
    if options.chat_template is not None:
        client.tokenizer.check_template(options.chat_template)
    try:
        return client.tokenizer.template_source(options.chat_template, with_tools=True)
    except BadRequest:
        return ""
