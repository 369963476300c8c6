"""The calls that a chat template writes, and whether parsers read them back."""

from __future__ import annotations

from typing import Any

import pytest

from lsv import plugins
from lsv.offers import ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import Catalog
from lsv.text.chat_template import ChatTemplates
from lsv.text.round_trip import RoundTrip, Write, Written, read_back, write_answers, write_calls
from lsv_api.parsers.choice import AnswerParsers
from lsv_api.parsers.finding import find_parser
from lsv_base.errors import ConfigError

HEADER = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content is defined %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
)
FOOTER = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
CALL = "{% for c in m.tool_calls or [] %}"
ONE_CALL = "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
HERMES = (
    HEADER + CALL + '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}" + FOOTER
)  # fmt: skip
ALL = ["one call", "two calls", "a call without arguments", "a call after a text", "a call after a thought"]

SINGLE = [case for case in ALL if case != "two calls"]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return plugins.load(["parsers"]).catalog


def writer(template: str) -> Write:
    chat = ChatTemplates({"default": template}, {})

    def render(messages: Any, tools: Any, prompt: bool) -> str:
        return chat.render(messages, tools=tools, add_generation_prompt=prompt)

    return lambda cases, schemas: write_answers(render, cases, schemas)


def write(template: str) -> list[Written]:
    return list(write_calls(writer(template)))


def try_out(catalog: Catalog, template: str, name: str, thoughts: str | None = "qwen3") -> RoundTrip:
    make = None if thoughts is None else catalog.load(find_parser(catalog, ReasoningParserOffer, thoughts))
    return read_back(write(template), catalog.load(find_parser(catalog, ToolParserOffer, name)), make)


def test_a_parser_that_reads_all_forms_is_proved(catalog: Catalog) -> None:
    found = try_out(catalog, HERMES, "hermes")
    assert (found.held, found.failed, found.proves) == (ALL, [], True)
    assert str(found) == f"it reads back what the template writes: {', '.join(ALL)}"


def test_a_parser_that_reads_none_fails_by_name(catalog: Catalog) -> None:
    found = try_out(catalog, HERMES, "glm45")
    assert (found.held, found.failed, found.proves) == ([], ALL, False)
    assert str(found) == f"it can't read back what the template writes for {', '.join(ALL)}"


@pytest.mark.parametrize(
    "opened", ["<think>\\n", "<think>\\n\\n</think>\\n\\n"], ids=["open thoughts", "closed thoughts"]
)
def test_thoughts_that_a_prompt_opens_and_a_history_leaves_out(opened: str, catalog: Catalog) -> None:
    template = HERMES.replace("<|assistant|>{% endif %}", "<|assistant|>{{ '" + opened + "' }}{% endif %}")
    assert try_out(catalog, template, "hermes").proves


def test_a_header_that_ends_inside_of_a_mark_is_cut_before_it(catalog: Catalog) -> None:
    """The prompt continues with a mark that begins like the history."""
    template = HERMES.replace("<tool_call>", "<|START_ACTION|>").replace("</tool_call>", "<|END_ACTION|>").replace(
        '"name"', '"tool_name"').replace('"arguments"', '"parameters"').replace(
        "<|assistant|>{% endif %}", "<|assistant|><|START_THINKING|>{% endif %}"
    )  # fmt: skip
    assert all(one.answer.startswith("<|START_ACTION|>") for one in write(template) if one.name in ALL[:3])
    assert try_out(catalog, template, "cohere_command4", "cohere_command4").held[:3] == ALL[:3]


@pytest.mark.parametrize(
    ("template", "cases"),
    [
        (HERMES.replace("{% for m", "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{% for m"), []),
        (HEADER + FOOTER, []),
        (HERMES.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"), SINGLE),
        (HERMES.replace("{{ m.content or '' }}", "{% if m.tool_calls %}{% else %}{{ m.content }}{% endif %}"), ALL),
        (HERMES.replace(CALL, ONE_CALL + CALL), SINGLE),
    ],
    ids=["no tools", "no calls", "the first call alone", "calls without their text", "one call alone"],
)  # fmt: skip
def test_what_a_template_does_not_write_is_not_tried(template: str, cases: list[str], catalog: Catalog) -> None:
    assert [written.name for written in write(template)] == cases
    if not cases:
        found = try_out(catalog, template, "hermes")
        assert str(found) == "the chat template shows no calls, so this could not be checked"


def choose(catalog: Catalog, template: str, named: str | None = None) -> tuple[str | None, str]:
    parsers = AnswerParsers(catalog, template, "LlamaForCausalLM", writer(template))
    offer, _, why = parsers.choose_calls(named, parsers.choose_thoughts("qwen3").parser)
    return offer and offer.name, why


def test_the_parser_that_reads_the_calls_is_chosen(catalog: Catalog) -> None:
    """A parser whose words are in the template is skipped if it reads no calls; another one is chosen."""
    proof = f"it reads back what the template writes: {', '.join(ALL)}"
    assert choose(catalog, HERMES) == ("hermes", f"the chat template has <tool_call> and arguments; {proof}")
    misleading = HERMES.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", "")
    hint = "{# write <tool_call> and its arguments, <arg_key> and <arg_value> #}"
    assert choose(catalog, hint + misleading) == ("mistral", f"the chat template has [TOOL_CALLS]; {proof}")
    assert choose(catalog, hint + HERMES.replace("tool_call>", "longcat_" "tool_call>").replace(
        "</longcat", "</longcat"))[0] == "longcat"  # fmt: skip


def test_a_form_that_nothing_reads_has_no_parser(catalog: Catalog) -> None:
    """The reason names the parser whose words are in the template."""
    told = "{{ c.function.name }} of {{ c.function.arguments.values() | join(' and ') }}. "
    template = "{# <tool_call>, arguments #}" + HEADER + CALL + told + "{% endfor %}" + FOOTER
    name, why = choose(catalog, template)
    assert name is None
    assert why.startswith("no tool parser can read what the chat template writes (hermes: it can't read back what")
    assert choose(catalog, template, named="hermes")[0] == "hermes", "an operator's word counts"


def test_a_form_that_no_plugin_names_has_a_derived_parser(catalog: Catalog) -> None:
    template = HERMES.replace("tool_call>", "act>").replace('"name"', '"do"').replace('"arguments"', '"with"')
    name, why = choose(catalog, template)
    assert (name, why) == ("derived", f"it reads back what the template writes: {', '.join(ALL)}")
    assert choose(catalog, template, named="hermes")[0] == "hermes", "an operator's word counts"


def test_a_derived_parser_that_is_named_needs_a_template_with_calls(catalog: Catalog) -> None:
    parsers = AnswerParsers(catalog, "", "LlamaForCausalLM", writer(HERMES))
    with pytest.raises(ConfigError, match="no tool parser can be derived from this chat template; name another"):
        parsers.choose_calls("derived", None)
    with pytest.raises(ConfigError, match="no reasoning parser can be derived from this chat template"):
        parsers.choose_thoughts("derived")


def test_thoughts_that_no_plugin_names_have_a_derived_parser(catalog: Catalog) -> None:
    template = HERMES.replace("think>", "muse>")
    parsers = AnswerParsers(catalog, template, "LlamaForCausalLM", writer(template))
    found = parsers.choose_thoughts(None)
    assert found.offer is not None
    assert (found.offer.name, found.why) == ("derived", "the chat template has <muse> and </muse>")


@pytest.mark.parametrize(
    ("calls", "thoughts", "held"),
    [("hermes", "qwen3", True), ("hermes", None, True), ("glm45", None, False)],
)
def test_the_form_of_the_template_holds_where_the_parser_reads_it(
    calls: str, thoughts: str | None, held: bool, catalog: Catalog
) -> None:
    parsers = AnswerParsers(catalog, HERMES, "LlamaForCausalLM", writer(HERMES))
    before = parsers.choose_thoughts(thoughts).parser if thoughts else None
    chosen = parsers.choose_calls(calls, before).parser
    assert chosen is not None
    assert (parsers.derive_grammar(chosen, before) is not None) is held


def test_a_form_that_begins_before_the_thoughts_end_does_not_hold(catalog: Catalog) -> None:
    """If thoughts end with the header of the answer, a call has another header, and JSON is forced instead."""
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}" + ONE_CALL + CALL + " to=functions.{{ c.function.name }}"
        "<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% if m.content %}"
        "<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )  # fmt: skip
    parsers = AnswerParsers(catalog, template, "GptOssForCausalLM", writer(template))
    thoughts = parsers.choose_thoughts("openai_gptoss").parser
    calls = parsers.choose_calls("openai", thoughts).parser
    assert calls is not None
    assert parsers.derive_grammar(calls, None) is not None
    assert parsers.derive_grammar(calls, thoughts) is None
