"""llguidance behind the seam: what it follows, what it refuses, within which limits."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from lsv.grammars.grammar import Vocabulary
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend, GuidanceMatcher

EOS = 256
WIDTH = 260


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    """A token a byte, an end, and three ids without a token."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"</s>", b"", b"", b""]
    return GuidanceBackend(Vocabulary(tokens, frozenset({EOS}), (EOS,), lambda text: list(text.encode())))


def allowed(matcher: GuidanceMatcher) -> set[int]:
    words = np.zeros(-(-WIDTH // 32), np.int32)
    matcher.fill(memoryview(words))
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def follow(backend: GuidanceBackend, text: str, **asked: Any) -> bool:
    """Whether ``text`` is a whole answer; each byte must be allowed by the mask before it is accepted."""
    matcher = backend.compile(StructuredOutputsParams(**asked)).begin()
    for byte in text.encode():
        if byte not in allowed(matcher):
            return False
        assert matcher.accept([byte])
    return EOS in allowed(matcher)


@pytest.mark.row("F-167")
@pytest.mark.parametrize(("text", "right"), [("ab", True), ("abab", True), ("a", False), ("", False), ("abc", False)])
def test_a_regex_is_the_whole_answer(backend: GuidanceBackend, text: str, right: bool):
    assert follow(backend, text, regex="(ab)+") is right


@pytest.mark.row("F-168")
def test_a_choice_is_one_of_the_texts(backend: GuidanceBackend):
    choices = ['say "x"', "back\\slash", "line\nbreak", "/x/", "été", "{"]
    assert all(follow(backend, text, choice=choices) for text in choices)
    assert not follow(backend, "say", choice=choices)


@pytest.mark.row("F-169")
@pytest.mark.parametrize("grammar", ['start: "a" start | "b"', 'root ::= "a" root | "b"'], ids=["lark", "gbnf"])
def test_a_grammar(backend: GuidanceBackend, grammar: str):
    assert follow(backend, "aaab", grammar=grammar)
    assert not follow(backend, "aaa", grammar=grammar)


@pytest.mark.row("F-166")
@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a":1}', True),
        ('{ "a": -12, "b": ["x", "y"] }', True),
        ('{\n    "a": 1\n}', True),
        ('{"a":1}\n', False),
        (' {"a":1}', False),
        ('{"a":1.5}', False),
        ('{"b":[]}', False),
        ('{"a":1,"c":2}', False),
        ('{"a":     1}', False),
    ],
)
def test_a_schema(backend: GuidanceBackend, text: str, right: bool):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert follow(backend, text, json=schema) is right


def test_whitespace_is_what_the_request_says(backend: GuidanceBackend):
    schema = {"type": "array", "items": {"type": "null"}}
    assert follow(backend, "[     null]", json=schema, whitespace_pattern="[ ]+")
    assert not follow(backend, "[\nnull]", json=schema, whitespace_pattern="[ ]+")


def test_an_answer_that_can_only_end_is_finished(backend: GuidanceBackend):
    matcher = backend.compile(StructuredOutputsParams(regex="ab?")).begin()
    assert matcher.accept(b"a")
    assert not matcher.finished
    assert allowed(matcher) == {ord("b"), EOS}
    assert matcher.accept(b"b")
    assert matcher.finished


def test_answers_of_one_grammar_do_not_meet(backend: GuidanceBackend):
    grammar = backend.compile(StructuredOutputsParams(choice=["aa", "bb"]))
    one, other = grammar.begin(), grammar.begin()
    assert one.accept(b"a")
    assert allowed(one) == {ord("a")}
    assert allowed(other) == {ord("a"), ord("b")}


def test_a_token_that_may_not_follow_is_a_fault(backend: GuidanceBackend):
    matcher = backend.compile(StructuredOutputsParams(regex="a+")).begin()
    assert not matcher.accept(b"x")
    assert "can't go on" in str(matcher.fault)
    assert allowed(matcher) == set()


NESTED: dict[str, Any] = {"type": "null"}
for _ in range(200):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"json": '{"type": "strange"}'}, "type at #: must be one or several of"),
        ({"json": "{"}, "it is not JSON"),
        ({"json": '{"const": NaN}'}, "NaN is not JSON"),
        ({"json": '{"minimum": 1e99999}'}, "digits"),
        ({"json": "[1]"}, "a schema must be an object"),
        ({"json": "false"}, "no value"),
        ({"json": {"type": "array", "x-guidance": {"lenient": True}, "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, "no value"),
        ({"json": {"oneOf": [{"type": "object"}, {"type": "object"}]}}, "no value"),
        ({"json": {"$ref": "#"}}, "refers to itself directly"),
        ({"json": {"allOf": [{"$ref": "#"}]}}, "refers to itself directly"),
        ({"json": NESTED}, "is nested more than 100 deep"),
        ({"regex": "(a"}, "unclosed"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreference"),
        ({"regex": r"[^\s\S]"}, ""),
        ({"grammar": "start: nope"}, "nope"),
        ({"grammar": "root ::= ("}, ""),
        (
            {"json": {"allOf": [{"anyOf": [{"properties": {f"{i}.{j}": {}}} for j in range(10)]} for i in range(10)]}},
            "",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:40],
)
def test_what_cannot_be_followed_is_refused(backend: GuidanceBackend, asked: dict[str, Any], why: str):
    with pytest.raises(BadRequest) as refused:
        backend.compile(StructuredOutputsParams(**asked))
    assert why in refused.value.message
    assert refused.value.param == "structured_outputs"
    assert len(refused.value.message) < 500


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": "(a+)+b"},
        {"regex": "(a{1,1000}){1,1000}"},
        {"regex": "(a|b)*a(a|b){24}"},
        {"regex": "((a{0,99}b{0,99}){0,99}c{0,99}){0,99}"},
        {"json": {"type": "string", "pattern": "^(a+)+$"}},
        {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}},
        {"json": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}}},
        {"json": {"type": "integer", "multipleOf": 9_999_999}},
        {"json": {"type": "string", "pattern": "^(?!x)(?:[a-z]{1,500}){1,20}$"}},
        {"json": {"type": "string", "not": {"pattern": "(a|b)*a(a|b){20}x"}}},
        {"json": {"patternProperties": {f"{letter}.*b": {} for letter in "acdefgh"}, "type": "object"}},
        {"json": {"dependentRequired": {f"a{n}": [f"b{n}"] for n in range(20)}}},
        {"json": {"allOf": [{"contains": {"const": n}} for n in range(9)]}},
        {"json": {"oneOf": [{"required": [f"a{n}"]} for n in range(30)]}},
        {"json": {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(3000)}}},
        {"json": {"minProperties": 1, "properties": {f"p{n}": {} for n in range(200)}, "additionalProperties": False}},
        {"json": {"properties": {"n" * 900: {}}}},
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_hard_ones_are_followed_or_refused_but_never_stall(backend: GuidanceBackend, asked: dict[str, Any]):
    try:
        matcher = backend.compile(StructuredOutputsParams(**asked)).begin()
    except BadRequest:
        return
    draw = random.Random(0)
    for _ in range(60):
        may = sorted(allowed(matcher) - {EOS})
        if not may:
            return
        assert matcher.accept([draw.choice(may)])


def test_large_enums(backend: GuidanceBackend):
    known = [f"member number {number}" for number in range(5_000)]
    assert follow(backend, json.dumps(known[4_321]), json={"enum": known})
    with pytest.raises(BadRequest, match="over the limit"):
        StructuredOutputsParams(json={"enum": [f"member number {number}" for number in range(100_000)]})
