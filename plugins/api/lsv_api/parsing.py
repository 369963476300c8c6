"""How a model's answers are read: the parsers of its calls and of its thoughts, chosen when the server starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from lsv import plugins
from lsv.config import EngineConfig
from lsv.offers import ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import KINDS, Catalog
from lsv.text.answer_parser import AnswerForm, AnswerParser, CallGrammar
from lsv.text.round_trip import Render, write_answers
from lsv.text.tokenizer import Tokenizer, open_tokenizer
from lsv_api.call_grammars import JsonCallGrammar
from lsv_api.described_tools import PARSER, DescribedTools, find_described
from lsv_api.options import ApiOptions
from lsv_api.parsers.choice import AnswerParsers, Choice
from lsv_api.parsers.files import add_file
from lsv_api.parsers.finding import find_parser
from lsv_api.schema_check import SchemaCheck
from lsv_base.errors import BadRequest

log = logging.getLogger("lsv.api")

MakeParser = Callable[[AnswerForm], AnswerParser]


FORCED = "json"
"""The parser of answers whose form the server prescribes."""


class Parsing(msgspec.Struct, frozen=True):
    """The parsers of one model; None where there is none."""

    tools: MakeParser | None = None
    thoughts: MakeParser | None = None
    why_no_tools: str = ""
    """The reason why ``tools`` is None."""

    forced: MakeParser | None = None
    """Reads an answer that must be calls: a list of JSON objects."""

    form: CallGrammar | None = None
    """The grammar of the model's calls."""

    marks: frozenset[str] = frozenset()
    """What the parsers look for."""

    short_ids: bool = False
    """Whether ids of calls are nine letters and digits."""

    described: DescribedTools | None = None
    """Writes tools, calls and results as text for a chat template without tools; else None."""

    schemas: SchemaCheck | None = None
    """Finds the function whose parameters the engine can't follow."""

    told: tuple[tuple[str, str], ...] = ()
    """The chosen parsers and the reasons."""


PLAIN = Parsing()
"""Answers are text."""


def choose_parsing(config: EngineConfig, tokenizer: Tokenizer, options: ApiOptions) -> Parsing:
    """The parsers for a model's answers, which the log names with the reason. Raises ``ConfigError``."""
    parsing = _choose(config, tokenizer, options)
    for noun, told in parsing.told:
        log.info("%s: %s is %s", config.served_names[0], noun, told)
    return parsing


def explain(config: EngineConfig, settings: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Choose the parsers for a model's answers. Raises ``ConfigError`` and ``CheckpointError``."""
    tokenizer = open_tokenizer(config, skip=settings["skip_tokenizer_init"])
    return _choose(config, tokenizer, ApiOptions.from_settings(settings)).told


def _choose(config: EngineConfig, tokenizer: Tokenizer, options: ApiOptions) -> Parsing:
    catalog = _catalog(sorted({*config.plugins, "api"}) if config.plugins else None, options)
    template, render = _template(tokenizer, options), _renderer(tokenizer, options)
    parsers = AnswerParsers(catalog, template, config.architecture, partial(write_answers, render))
    thoughts = parsers.choose_thoughts(options.reasoning_parser)
    calls, described = parsers.choose_calls(options.tool_call_parser, thoughts.parser), None
    offered = any(offer.name == PARSER for offer in catalog.offers(ToolParserOffer))
    if template and offered and calls.offer is None and options.tool_call_parser is None:
        described = find_described(render)
    if described is not None:
        calls = parsers.choose_calls(PARSER, thoughts.parser)
        calls = calls._replace(why="the chat template shows no tools, so the server describes them in the prompt")
    form = _form(calls, thoughts, parsers)
    chosen = [choice.parser for choice in (calls, thoughts) if choice.parser is not None]
    return Parsing(
        tools=None if calls.parser is None else calls.parser.make,
        thoughts=None if thoughts.parser is None else thoughts.parser.make,
        why_no_tools="" if calls.offer is not None else calls.why,
        forced=_forced(catalog),
        form=form,
        marks=frozenset(mark for parser in chosen for mark in parser.marks),
        short_ids=calls.offer is not None and calls.offer.short_ids,
        described=described,
        schemas=SchemaCheck(catalog, config.grammars),
        told=tuple(_tell(calls, thoughts, form, options)),
    )


def check_parsers(options: ApiOptions, chosen: Sequence[str] | None = None) -> None:
    """Raises ``ConfigError`` for unknown names of parsers, and for a file that is not a plugin."""
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


def _renderer(tokenizer: Tokenizer, options: ApiOptions) -> Render:
    """A function that renders conversations with the chat template of requests."""

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        return tokenizer.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=prompt,
            template=options.chat_template,
            kwargs=options.default_chat_template_kwargs,
            content_format=options.content_format,
        )

    return render


def _form(
    calls: Choice[ToolParserOffer], thoughts: Choice[ReasoningParserOffer], parsers: AnswerParsers
) -> CallGrammar | None:
    """The grammar of calls: derived from the template, or given by the parser's plugin."""
    if calls.offer is None or calls.parser is None:
        return None
    derived = parsers.derive_grammar(calls.parser, thoughts.parser)
    return JsonCallGrammar(calls.offer.form) if derived is None and calls.offer.form is not None else derived


def _tell(
    calls: Choice[ToolParserOffer],
    thoughts: Choice[ReasoningParserOffer],
    form: CallGrammar | None,
    options: ApiOptions,
) -> Iterator[tuple[str, str]]:
    """The chosen parsers and the reasons, for the log."""
    for kind, choice in ((ReasoningParserOffer, thoughts), (ToolParserOffer, calls)):
        if choice.offer is not None or kind is ToolParserOffer or options.reasoning_parser is not None:
            yield KINDS[kind].noun, f"{'none' if choice.offer is None else choice.offer.name}: {choice.why}"
    if calls.offer is not None and form is None:
        yield (
            "grammar of calls",
            f"none: with tool_choice auto, calls of strict functions may violate their schemas, because no grammar is "
            f"known for calls of {calls.offer.name}; forced calls follow them",
        )


def _forced(catalog: Catalog) -> MakeParser | None:
    for offer in catalog.offers(ToolParserOffer):
        if offer.name == FORCED:
            make: MakeParser = catalog.load(offer)
            return make
    return None


def _template(tokenizer: Tokenizer, options: ApiOptions) -> str:
    """The chat template that requests with tools are rendered by; empty where there is none.

    Raises ``ConfigError`` for the name of one that the tokenizer does not have.
    """
    if options.chat_template is not None:
        tokenizer.check_template(options.chat_template)
    try:
        return tokenizer.template_source(options.chat_template, with_tools=True)
    except BadRequest:
        return ""
