"""Forced calls and strict schemas, in forms derived from a chat template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lsv.request.structured import StructuredOutputsParams
from lsv.text.answer_parser import CallGrammar
from lsv.text.round_trip import Call, Case
from lsv_api.call_grammars import either_grammar, forced_grammar, strict_grammar
from lsv_guidance.backend import GuidanceBackend
from lsv_parsers.derived.parser import derive_parser
from lsv_testing.grammars.marked import MarkedBytes, allows

from .derived_forms import FORMS, template, writer

COLOUR = {"enum": ["red", "light blue"]}
PAINT = {
    "type": "object",
    "properties": {
        "colour": {"$ref": "#/$defs/colour"},
        "coats": {"type": "integer", "minimum": 1},
        "note": {"type": "string"},
        "dry": {"type": "boolean"},
    },
    "required": ["colour", "coats"],
    "additionalProperties": False,
    "$defs": {"colour": {"type": "string", **COLOUR}},
}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "paint": PAINT,
    "stop": {"type": "object", "properties": {}},
    "any": {"type": "object"},
}
GOOD: list[list[Call]] = [
    [("paint", {"colour": "red", "coats": 2})],
    [("paint", {"colour": "light blue", "coats": 1, "note": "On the <b> door", "dry": True})],
    [("paint", {"colour": "red", "coats": 3, "dry": False})],
    [("stop", {})],
    [("any", {"thing": "x"})],
    [("paint", {"colour": "red", "coats": 2}), ("stop", {})],
]
WRONG: list[Call] = [
    ("paint", {"colour": "green", "coats": 2}),
    ("paint", {"colour": "red", "coats": 0}),
    ("paint", {"colour": "red"}),
    ("paint", {"colour": "red", "coats": 2, "more": 1}),
    ("unknown", {}),
]
HELD = [name for name, form in FORMS.items() if form.grammar]


def derive(name: str) -> CallGrammar:
    found = derive_parser(writer(template(FORMS[name].calls)))
    assert found is not None
    assert found.grammar is not None
    return found.grammar


def write(name: str, calls: list[Call]) -> str:
    source = template(FORMS[name].calls)
    (written,) = writer(source)({"": Case(tuple(calls))}, FUNCTIONS)
    answer = written.answer.removesuffix("<|end|>").rstrip()
    if name == "python":
        answer = answer.replace("true", "True").replace("false", "False").replace("'", '"')
    return answer


def follows(tokenizer: MarkedBytes, grammar: str | None, text: str) -> bool:
    assert grammar is not None
    asked = StructuredOutputsParams(grammar=grammar)
    return allows(GuidanceBackend(tokenizer.vocabulary).compile(asked), tokenizer, text)


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", HELD)
def test_a_forced_call_is_written_as_the_template_writes_it(name: str, special: bool) -> None:
    tokenizer = MarkedBytes(*(("<call>", "</call>", "<calls>", "<do=", "</put>", "<q>") if special else ()))
    many, one = (forced_grammar(derive(name), FUNCTIONS, tokenizer, many=many) for many in (True, False))  # type: ignore[arg-type]
    for calls in GOOD:
        assert follows(tokenizer, many, write(name, calls)), write(name, calls)
        assert follows(tokenizer, one, write(name, calls)) is (len(calls) == 1)
    for call in WRONG:
        assert not follows(tokenizer, many, write(name, [call])), call
    for text in ("", "Hello", f"Well. {write(name, GOOD[0])}"):
        assert not follows(tokenizer, many, text)


@pytest.mark.parametrize("name", [name for name in HELD if FORMS[name].opened])
def test_a_strict_call_beside_text(name: str) -> None:
    tokenizer = MarkedBytes("<call>", "</call>", "<calls>", "<do=", "</put>", "<q>")
    strict = strict_grammar(derive(name), FUNCTIONS, tokenizer, ())  # type: ignore[arg-type]
    for text in ("", "Hello.", write(name, GOOD[1]), f"Well. {write(name, GOOD[0])}", write(name, GOOD[5])):
        assert follows(tokenizer, strict, text), text
    for call in WRONG:
        assert not follows(tokenizer, strict, f"Well. {write(name, [call])}"), call


def test_a_call_or_an_answer_in_json() -> None:
    tokenizer = MarkedBytes()
    either = either_grammar(derive("tags"), FUNCTIONS, tokenizer, {"type": "integer"})  # type: ignore[arg-type]
    assert follows(tokenizer, either, "7")
    assert follows(tokenizer, either, write("tags", GOOD[0]))
    assert not follows(tokenizer, either, write("tags", [WRONG[0]]))


def test_nothing_tells_objects_without_marks_from_text() -> None:
    assert strict_grammar(derive("objects without marks"), FUNCTIONS, MarkedBytes(), ()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "[0-9]+"},
        {"type": "string", "maxLength": 3},
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]},
        {"$ref": "#/$defs/short"},
    ],
)
def test_a_text_without_quotes_has_no_pattern_nor_length(schema: dict[str, Any]) -> None:
    """Then the call is forced in JSON, which can enforce them."""
    function = {"type": "object", "properties": {"a": schema}, "$defs": {"short": {"type": "string", "maxLength": 3}}}
    for name, held in (("tags", False), ("keys without quotes", False), ("python", True), ("words", True)):
        made = forced_grammar(derive(name), {"f": function}, MarkedBytes(), many=True)  # type: ignore[arg-type]
        assert (made is not None) is held, name


@pytest.mark.parametrize("keyword", [{"patternProperties": {"^x": {}}}, {"anyOf": [{}]}, {"required": ["b"]}])
def test_arguments_one_by_one_need_a_list_of_properties(keyword: dict[str, Any]) -> None:
    function = {"type": "object", "properties": {"a": {"type": "integer"}}, **keyword}
    assert forced_grammar(derive("tags"), {"f": function}, MarkedBytes(), many=True) is None  # type: ignore[arg-type]


def test_arguments_as_a_text_are_not_held() -> None:
    assert forced_grammar(derive("arguments as a text"), FUNCTIONS, MarkedBytes(), many=True) is None  # type: ignore[arg-type]


def test_written_calls_are_json_where_the_form_is() -> None:
    assert json.loads(write("objects without marks", GOOD[0]))["name"] == "paint"
