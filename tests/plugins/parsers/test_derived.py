"""Parsers derived from a chat template, for forms that no plugin knows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsv.text.answer_parser import AnswerForm, ModelParser
from lsv.text.round_trip import Case, read_back, write_calls
from lsv_parsers.derived.parser import derive_parser
from lsv_parsers.derived.thoughts import derive_parser as derive_thinking
from lsv_parsers.derived.thoughts import derive_thoughts
from lsv_testing.answers.parsers import check_parser

from .derived_forms import FORMS, template, writer
from .samples import ARGUMENTS, TOOLS, Call

FORM = AnswerForm(tools=TOOLS, hidden=("<|eot|>",))


def derive(name: str) -> ModelParser:
    found = derive_parser(writer(template(FORMS[name].calls)))
    assert found is not None
    return found


def write(name: str, calls: list[Call]) -> str:
    (written,) = writer(template(FORMS[name].calls))({"": Case(tuple(calls))}, TOOLS)
    return written.answer.removesuffix("<|end|>")


def read(name: str, answer: str) -> list[Call]:
    found = check_parser(derive(name).make, answer, FORM)
    assert found.text == ""
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize("name", FORMS)
def test_what_the_template_writes_is_read_back(name: str) -> None:
    write = writer(template(FORMS[name].calls))
    written = write_calls(write)
    assert len(written) == 4
    found = read_back(written, derive(name).make, None)
    assert found.failed == ([] if FORMS[name].opened else ["a call after a text"])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_arguments(name: str, arguments: str) -> None:
    form, call = FORMS[name], ("get_weather", ARGUMENTS[arguments])
    if arguments == "brackets" and "</put>" not in form.calls and form.raw:
        pytest.skip("the text holds what ends it")
    if not form.escapes and arguments in ("escapes", "lines", "nested", "null", "several"):
        pytest.skip("the template writes no literals")
    assert read(name, write(name, [call])) == [call]


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = [name for name, form in FORMS.items() if not form.raw and form.escapes and name != "keys without quotes"]


@pytest.mark.machine
@pytest.mark.parametrize("name", OBJECTS)
@settings(deadline=None, max_examples=5)
@given(arguments=st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3))
def test_any_calls_are_read_as_they_were_written(name: str, arguments: list[dict[str, object]]) -> None:
    calls: list[Call] = [("get_weather", one) for one in arguments]
    assert read(name, write(name, calls)) == calls


@pytest.mark.parametrize("name", FORMS)
def test_text_around_a_call(name: str) -> None:
    call = ("get_weather", ARGUMENTS["plain"])
    answer = f"I look it up.\n{write(name, [call])}"
    found = check_parser(derive(name).make, answer, FORM)
    if FORMS[name].opened:
        assert (found.text, len(found.calls)) == ("I look it up.", 1)
    else:
        assert (found.text, len(found.calls)) == (answer, 0)


@pytest.mark.parametrize("name", ["words", "an object in a fence"])
def test_words_begin_a_call_only_of_an_offered_tool(name: str) -> None:
    answer = write(name, [("get_weather", {"city": "Bern"})]).replace("get_weather", "unknown")
    found = check_parser(derive(name).make, answer, FORM)
    assert (found.text, found.calls) == (answer, [])


@pytest.mark.parametrize(
    "calls",
    ["", "{{ m.tool_calls | length }} calls", "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"],
    ids=["no calls", "a number", "names alone"],
)
def test_what_shows_no_calls_has_no_parser(calls: str) -> None:
    assert derive_parser(writer(template(calls))) is None


@pytest.mark.parametrize(
    ("thoughts", "begin", "end"),
    [
        ("<muse>\n{{ m.reasoning_content }}\n</muse>\n\n", "<muse>", "</muse>"),
        ("[HM]{{ m.reasoning_content }}[/HM]", "[HM]", "[/HM]"),
        ("I think: {{ m.reasoning_content }}\nI say: ", "I think:", "I say:"),
    ],
)
def test_thoughts_are_derived_as_well(thoughts: str, begin: str, end: str) -> None:
    write = writer(template(FORMS["tags"].calls, thoughts))
    found, calls = derive_thinking(write), derive_parser(write)
    assert found is not None
    assert calls is not None
    assert found.marks == (begin, end)
    both = check_parser(found.make, f"{begin} One, two.\n{end} Three.", AnswerForm())
    assert (both.thoughts, both.text) == ("One, two.", "Three.")
    assert read_back(write_calls(write), calls.make, found.make).proves
    assert len(write_calls(write)) == 5


def test_thoughts_whose_beginning_the_prompt_writes() -> None:
    source = template(FORMS["tags"].calls, "<muse>{{ m.reasoning_content }}</muse>").replace(
        "%}<|assistant|>{%", "%}<|assistant|><muse>{%"
    )
    found = derive_thoughts(writer(source))
    assert found is not None
    assert (found.begins, found.ends) == (("<muse>",), ("</muse>",))


@pytest.mark.parametrize("thoughts", ["{{ m.reasoning_content }}", "<muse>{{ m.reasoning_content }}"])
def test_thoughts_without_an_end_are_not_derived(thoughts: str) -> None:
    assert derive_thoughts(writer(template(FORMS["tags"].calls, thoughts))) is None
