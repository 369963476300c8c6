"""Every parser of calls, on answers as its family writes them: whole, cut at every place, cut off, and damaged."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lsv.offers import load_object
from lsv.text.answer_parser import AnswerForm
from lsv_parsers.plugin import lsv_tool_parsers
from lsv_parsers.reader import Reader
from lsv_testing.answers.parsers import Found, check_parser, parse

from .samples import ARGUMENTS, FAMILIES, TOOLS, Call, Family, written

OFFERS = {offer.name: offer for offer in lsv_tool_parsers() if not offer.derives}
FORM = AnswerForm(tools=TOOLS, hidden=("<|eot|>",))
CALLS: dict[str, list[Call]] = {
    **{name: [("get_weather", arguments)] for name, arguments in ARGUMENTS.items()},
    "two": [("get_weather", ARGUMENTS["several"]), ("now", {})],
    "three": [("now", {}), ("get_weather", ARGUMENTS["nested"]), ("get_weather", ARGUMENTS["unicode"])],
}

pytestmark = pytest.mark.row("F-175", "F-178", "F-179")


@pytest.fixture(params=FAMILIES)
def name(request):
    return request.param


@pytest.fixture
def family(name) -> Family:
    return FAMILIES[name]


@pytest.fixture
def make(name):
    return load_object(OFFERS[name.split()[0]].load)


def found_calls(found: Found) -> list[Call]:
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


def test_every_parser_has_a_family():
    assert {name.split()[0] for name in FAMILIES} == set(OFFERS)


@pytest.mark.parametrize("case", CALLS)
def test_calls(make, family, case):
    if not family.typed and case in ("nested", "three", "null"):
        pytest.skip("an empty list or object, and null, are written like an empty text")
    found = check_parser(make, written(family, *CALLS[case]), FORM)
    assert found_calls(found) == CALLS[case]
    assert found.text == ""


def test_text_without_calls(make):
    answer = "  It is 5 < 6, [1] or {2}; <b>f(x)</b>\n```py\n[f(1)]\n```\n\ttool_call Ünï \n"
    assert check_parser(make, answer, FORM) == Found(text=answer)
    assert check_parser(make, "", FORM) == Found()
    assert check_parser(make, " \n", FORM) == Found(text=" \n")


def test_text_around_calls(make, family):
    before = "Let me see.\n\n" if family.text_before else ""
    after = "\nThat is it." if family.text_after else ""
    found = check_parser(make, before + written(family, *CALLS["two"]) + after, FORM)
    assert found_calls(found) == CALLS["two"]
    assert found.text == (before + after.lstrip() if after and before else before.rstrip() + after.lstrip())


def test_special_tokens_are_hidden(make, family):
    found = check_parser(make, f"{written(family, *CALLS['plain'])}<|eot|>", FORM)
    assert (found_calls(found), found.text) == (CALLS["plain"], "")
    assert check_parser(make, "a<|eot|>b", FORM) == Found(text="ab")


def test_what_is_no_call_is_text(make, family):
    for answer in (f"{family.mark} is how a call begins", f"{family.mark}{family.mark}", family.mark):
        found = check_parser(make, answer, FORM)
        assert found.calls == []
        assert found.text.replace(" ", "") in answer.replace(" ", "")
        assert "is how a call begins" not in answer or found.text.endswith("is how a call begins")


def test_a_mark_that_is_written_twice(name, make, family):
    needs_none = name == "minicpm5" or family.mark in ("[get", "[{", "<|channel|>")
    if not family.mark or family.mark[0] not in "<[" or needs_none:
        pytest.skip("its calls need no mark")
    whole = written(family, *CALLS["plain"])
    found = check_parser(make, whole.replace(family.mark, f"{family.mark} {family.mark}", 1), FORM)
    assert (found_calls(found), found.text) == (CALLS["plain"], "")


def test_a_call_that_is_cut_off_has_unfinished_arguments(make, family):
    whole = written(family, ("get_weather", ARGUMENTS["several"]))
    place = whole.index("Bern") + 2
    found = check_parser(make, whole[:place], FORM)
    if found.calls:
        assert found.calls[0].name == "get_weather"
        with pytest.raises(ValueError, match=r"."):
            json.loads(found.calls[0].arguments)
    for end in range(len(whole)):
        parse(make, whole[:end], FORM)


def test_damaged_answers_raise_nothing(make, family):
    drawn = random.Random(family.mark)
    whole = "Hm. " * family.text_before + written(family, *CALLS["three"])
    for _ in range(60):
        at, size = drawn.randrange(len(whole)), drawn.randrange(12)
        answer = drawn.choice([
            whole[:at] + whole[at + size :],
            whole[:at] + whole[at : at + size] + whole[at:],
            whole[:at] + drawn.choice(['"', "{", "}", "[", "\\", "<", family.mark, "\0", "é"]) + whole[at:],
        ])  # fmt: skip
        assert parse(make, answer, FORM, range(1, len(answer))) == parse(make, answer, FORM)


def scanned(make, answer: str) -> int:
    parser = make(FORM)
    assert isinstance(parser, Reader)
    for character in answer:
        parser.push(character)
    parser.end()
    return parser.source.scanned


def test_time_grows_with_the_length_and_no_faster(make, family):
    def answer(size: int) -> str:
        return written(family, ("get_weather", {"city": "<{[" * size}), ("now", {})) + "<[{" * size * family.text_after

    short, long = scanned(make, answer(500)), scanned(make, answer(4000))
    assert long < 9 * short
    for mark in ("[" * 3000, "{" * 3000, family.mark * 300):
        assert scanned(make, mark * 4) < 5 * scanned(make, mark)


def test_arguments_come_as_they_are_written(make, family):
    if not family.typed:
        pytest.skip("only the end of a value says whether it is a text")
    parser = make(FORM)
    whole = written(family, ("get_weather", {"city": "x" * 100}))
    pieces = [part for character in whole for part in parser.push(character)]
    assert len(pieces) > 50, "nothing waits for the end of the call"


@pytest.mark.parametrize(
    ("parser", "answer", "arguments"),
    [
        ("hermes", '<tool_call>{"arguments": {"city": "a"}, "name": "get_weather"}</tool_call>', '{"city": "a"}'),
        ("hermes", '<tool_call>{"name": "get_weather"}</tool_call>', "{}"),
        ("hermes", '<tool_call>{"name": "now", "arguments": null}', "{}"),
        ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": \\"\\\\n\\"}"}', '{"a": "\\n"}'),
        ("hermes", '<tool_call>{"id": "7", "type": "function", "name": "now", "arguments": {}}', "{}"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "line\nbreak \\d"}}', '{"a": "line\\nbreak \\\\d"}'),
        ("pythonic", "[get_weather(city='it\\'s', days=+1)]", '{"city": "it\'s", "days": '),
        ("pythonic", "[now(a=(1, 2,), b={'k': [True]}, c=\"\\x41\\u00e9\")]",
         '{"a": [1, 2], "b": {"k": [true]}, "c": "A\\u00e9"}'),
        ("pythonic", "[now(a=open('x'))]", '{"a": '),
        ("pythonic", "[now(a='\\U0000d800\\ud800')]", '{"a": "\\ud800\\ud800"}'),
        ("glm45", '<tool_call>now<arg_key>a</arg_key><arg_value>"\\ud800"</arg_value></tool_call>', '{"a": "\\ud800"}'),
        ("qwen3_coder", "<tool_call><function=get_weather><parameter=city>1</parameter><parameter=days>x</parameter>"
         "</function></tool_call>", '{"city": "1", "days": "x"}'),
        ("qwen3_coder", "<tool_call><function=get_weather><parameter=hourly>True</parameter></function>",
         '{"hourly": true}'),
        ("glm45", "<tool_call>now</tool_call>", "{}"),
        ("kimi_k2", "<|tool_call_begin|>functions.now:12 <|tool_call_argument_begin|> {}<|tool_call_end|>", "{}"),
    ],
)  # fmt: skip
def test_spellings(parser, answer, arguments):
    found = check_parser(load_object(OFFERS[parser].load), answer, FORM)
    assert [call.arguments for call in found.calls] == [arguments]


TAGGED = ("qwen3_coder", "seed_oss", "minimax_m2", "glm45")
CLOSERS = {"glm45": ("</arg_value>",), "minimax_m2": ("</parameter>", "</invoke>")}


@pytest.mark.parametrize("name", TAGGED)
def test_closing_tags_may_be_missing(name):
    """A value ends at the next key or at the end of the call, a call at the end of its marks."""
    make, family = load_object(OFFERS[name].load), FAMILIES[name]
    whole = written(family, *CALLS["two"])
    for closer in CLOSERS.get(name, ("</parameter>", "</function>")):
        found = check_parser(make, whole.replace(f"{closer}\n", "").replace(closer, ""), FORM)
        assert (found_calls(found), found.text) == (CALLS["two"], ""), closer


@pytest.mark.parametrize(("name", "opener"), [("qwen3_coder", "<tool_call>\n"), ("seed_oss", "<seed:tool_call>\n")])
def test_the_opening_mark_may_be_missing(name, opener):
    """Only before an offered tool; the name of any other tool is text."""
    make = load_object(OFFERS[name].load)
    whole = written(FAMILIES[name], *CALLS["several"]).replace(opener, "")
    for text in ("", "I look it up.\n\n"):
        found = check_parser(make, text + whole, FORM)
        assert (found_calls(found), found.text) == (CALLS["several"], text.strip())
    for text in ("<function=print>x</function>", "It is <function=get_weather", "<function="):
        assert check_parser(make, text, FORM) == Found(text=text)


TYPED = {
    "reference": ({"$ref": "#/$defs/Text"}, "1"),
    "all of": ({"allOf": [{"$ref": "#/$defs/Text"}, {"description": "a text"}]}, "1"),
    "optional reference": ({"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]}, "1"),
    "enum": ({"enum": ["1", "2"]}, "1"),
    "enum of both": ({"enum": ["1", 1]}, 1),
    "const": ({"const": "1"}, "1"),
    "two references": ({"$ref": "#/$defs/Level"}, "1"),
    "odd name": ({"$ref": "#/$defs/a~1b%20c"}, "1"),
    "number": ({"$ref": "#/$defs/Number"}, 1),
    "loop": ({"$ref": "#/$defs/Loop"}, 1),
    "elsewhere": ({"$ref": "https://example.org/x"}, 1),
    "nothing": (True, 1),
}
DEFINITIONS = {
    "Text": {"type": "string"}, "Level": {"$ref": "#/$defs/Text", "enum": ["1", "2"]}, "Number": {"type": "integer"},
    "a/b c": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"},
}  # fmt: skip


@pytest.mark.parametrize("name", TAGGED)
def test_values_have_the_types_of_the_schema(name):
    schema = {"properties": {key: schema for key, (schema, _) in TYPED.items()}, "$defs": DEFINITIONS}
    whole = written(FAMILIES[name], ("set", dict.fromkeys(TYPED, 1)))
    for tools in ({"set": schema}, {"set": {"$ref": "#/$defs/All", "$defs": {**DEFINITIONS, "All": schema}}}):
        found = parse(load_object(OFFERS[name].load), whole, AnswerForm(tools=tools))
        assert found_calls(found) == [("set", {key: value for key, (_, value) in TYPED.items()})]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,11}", fullmatch=True)


@pytest.mark.machine
@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=3)
@given(calls=st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3))
def test_any_calls_are_read_as_they_were_written(name, calls):
    given = [value for arguments in calls.values() for value in arguments.values()]
    assume(FAMILIES[name].typed or not any(isinstance(value, list | dict | None) for value in given))

    def schema(value):
        return {"type": "string"} if isinstance(value, str) else {}

    make, family = load_object(OFFERS[name.split()[0]].load), FAMILIES[name]
    tools = {name: {"properties": {key: schema(given[key]) for key in given}} for name, given in calls.items()}
    found = check_parser(make, written(family, *calls.items()), AnswerForm(tools=tools), trials=2)
    assert (found_calls(found), found.text) == ([*calls.items()], "")


def test_only_offered_tools_are_called_without_marks():
    for parser, answer in (
        ("llama3_json", '{"name": "Bob", "parameters": {}}'),
        ("pythonic", "[print(a=1)]"),
        ("xlam", '```json\n{"name": "Bob", "arguments": {}}\n```'),
    ):
        assert check_parser(load_object(OFFERS[parser].load), answer, FORM) == Found(text=answer)


def test_ids_that_models_write():
    found = check_parser(load_object(OFFERS["kimi_k2"].load), written(FAMILIES["kimi_k2"], ("now", {})), FORM)
    assert found.calls[0].id == "functions.now:0"
    found = check_parser(load_object(OFFERS["mistral"].load), "[TOOL_CALLS]now[CALL_ID]abcdef123[ARGS]{}", FORM)
    assert (found.calls[0].name, found.calls[0].id) == ("now", "abcdef123")


def test_depth_is_bounded():
    make = load_object(OFFERS["hermes"].load)
    for depth, is_whole in ((50, True), (100, False), (100_000, False)):
        arguments = '{"a": ' + "[" * depth + "]" * depth + "}"
        found = parse(make, f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>', FORM)
        assert (found.calls[0].arguments == arguments) == is_whole
