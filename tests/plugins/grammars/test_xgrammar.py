"""xgrammar behind the seam: its own forms, and what it is never given."""

from __future__ import annotations

import codecs
import json
import random
from typing import Any

import pytest

from lsv.grammars.grammar import Vocabulary
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
from lsv_testing.grammars.walk import BYTES, EOS, allowed, follows
from lsv_xgrammar.plugin import lsv_grammars
from lsv_xgrammar.schemas import MAX_MEMBERS, NotFollowed, exact

INT = {"type": "json_schema", "json_schema": {"type": "integer"}}
TAG = {"type": "tag", "begin": "<f=a>", "content": INT, "end": "</f>"}


@pytest.fixture(scope="module")
def backend() -> Any:
    pytest.importorskip("xgrammar")
    from lsv_xgrammar.backend import XGrammarBackend

    return XGrammarBackend(BYTES)


def follow(backend: Any, text: str, **asked: Any) -> bool:
    return follows(backend.compile(StructuredOutputsParams(**asked)), text)


@pytest.mark.parametrize("installed", [True, False])
def test_it_is_offered_where_it_is_installed(installed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lsv_xgrammar.availability.find_spec", lambda name: object() if installed else None)
    assert [offer.name for offer in lsv_grammars()] == (["xgrammar"] if installed else [])


@pytest.mark.row("F-167", "F-170")
@pytest.mark.parametrize(("text", "right"), [("ab", True), ("abab", True), ("a", False), ("", False), ("abc", False)])
def test_a_regex_is_the_whole_answer(backend: Any, text: str, right: bool):
    assert follow(backend, text, regex="(ab)+") is right


@pytest.mark.row("F-168", "F-170")
def test_a_choice_is_one_of_the_texts(backend: Any):
    choices = ['say "x"', "back\\slash", "line\nbreak", "/x/", "été", "{", "tab\t", "\x01"]
    assert all(follow(backend, text, choice=choices) for text in choices)
    assert not follow(backend, "say", choice=choices)


@pytest.mark.row("F-169", "F-170")
def test_grammars_in_both_notations(backend: Any):
    for grammar in ('root ::= "a" b\nb ::= "x" | "y"', 'start: "a" b\nb: "x" | "y"'):
        assert follow(backend, "ax", grammar=grammar)
        assert not follow(backend, "a", grammar=grammar)


@pytest.mark.parametrize(
    "asked",
    [{"json": {"type": "string", "maxLength": 4}}, {"json": {"type": "string"}}, {"regex": '[^"]{0,9}'}],
    ids=str,
)
def test_answers_are_unicode_byte_by_byte(backend: Any, asked: dict[str, Any]):
    """Overlong forms, surrogates and what is beyond the last character are no part of a text."""
    grammar = backend.compile(StructuredOutputsParams(**asked))
    for number in range(300):
        chance, matcher, answer = random.Random(number), grammar.begin(), bytearray()
        while (token := _pick(chance, allowed(matcher))) != EOS and len(answer) < 30:
            answer.append(token)
            assert matcher.accept([token])
        codecs.getincrementaldecoder("utf-8")().decode(bytes(answer))


def _pick(chance: random.Random, tokens: list[int]) -> int:
    """Mostly bytes of characters beyond ASCII."""
    beyond = [token for token in tokens if 0x80 <= token < EOS]
    return chance.choice(beyond if beyond and chance.random() < 0.9 else tokens)


def test_any_object(backend: Any):
    assert follow(backend, '{"a": [1, {}]}', json_object=True)
    assert not follow(backend, "[]", json_object=True)


def test_an_answer_is_finished_where_nothing_but_the_end_may_follow(backend: Any):
    for regex, finished in (("a", True), ("a+", False)):
        matcher = backend.compile(StructuredOutputsParams(regex=regex)).begin()
        assert not matcher.finished
        assert matcher.accept([ord("a")])
        assert matcher.finished is finished


def test_a_token_that_may_not_follow_is_a_fault_of_its_answer_alone(backend: Any):
    grammar = backend.compile(StructuredOutputsParams(regex="ab"))
    wrong, right = grammar.begin(), grammar.begin()
    assert not wrong.accept([ord("x")])
    assert "can't go on" in wrong.fault
    row = bytearray(b"\xff" * 36)
    wrong.fill(memoryview(row))
    assert not any(row)
    assert right.accept([ord("a"), ord("b")])


@pytest.mark.row("F-155")
def test_structural_tags(backend: Any):
    older = {"structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f="]}
    newer = {"format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG]}}
    for tag in (older, newer):
        for text in ("", "just text", "x <f=a>1</f> y <f=a>2</f>"):
            assert follow(backend, text, structural_tag=tag), text
        for text in ("<f=a>x</f>", "<f=b>", "x <f=a>1"):
            assert not follow(backend, text, structural_tag=tag), text
    around = {"format": {"type": "tag", "begin": "<r>", "content": {"type": "any_text"}, "end": "</r>"}}
    assert follow(backend, "<r>anything</r>", structural_tag=around)
    assert not follow(backend, "<r>anything", structural_tag=around)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": "{"}, "not JSON"),
        ({"json": "{}", "whitespace_pattern": " "}, "whitespace_pattern"),
        ({"json": {"enum": list(range(100_000))}}, "characters|members"),
        ({"json": {"enum": list(range(MAX_MEMBERS + 1))}}, "at most"),
        ({"choice": [f"choice {number}" for number in range(3000)]}, "at most"),
        ({"regex": "(?=a)b"}, "Lookahead"),
        ({"regex": "(a"}, "parenthesis"),
        ({"regex": "a" * 70_000}, "characters"),
        ({"grammar": "root ::= nothing"}, "nothing"),
        ({"grammar": "start: start"}, "no answer"),
        ({"structural_tag": {"format": {**INT, "json_schema": {"not": {}}}}}, "not"),
        ({"structural_tag": {"format": {"type": "grammar", "grammar": 'start: "a"'}}}, "GBNF"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_not_followed_is_refused_by_name(backend: Any, asked: dict[str, Any], why: str):
    with pytest.raises(BadRequest, match=why):
        backend.compile(StructuredOutputsParams(**asked))


def test_marks_of_special_tokens_are_refused():
    pytest.importorskip("xgrammar")
    from lsv_xgrammar.backend import XGrammarBackend

    special = Vocabulary([*BYTES.tokens[:257], b"[CALL]"], frozenset({256, 257}), (256,), BYTES.encode)
    tag = {"structures": [{"begin": "[CALL]", "schema": {}, "end": "."}], "triggers": ["[CALL]"]}
    with pytest.raises(BadRequest, match="special token"):
        XGrammarBackend(special).compile(StructuredOutputsParams(structural_tag=tag))  # type: ignore[arg-type]


# Schemas, without xgrammar


@pytest.mark.parametrize(
    ("schema", "as_followed"),
    [
        (True, {}),
        ({"type": "integer", "minimum": 3.0, "title": "x"}, {"type": "integer", "minimum": 3}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["null", "boolean"]}, {"anyOf": [{"type": "null"}, {"type": "boolean"}]}),
        (
            {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}},
            {"$ref": "#/$defs/r0", "$defs": {"r0": {"type": "null"}}},
        ),
    ],
)
def test_schemas_are_rewritten_as_it_follows_them(schema: Any, as_followed: Any):
    assert json.loads(exact(json.dumps(schema))) == as_followed


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {}}}, "minimum beside \\$ref"),
        ({"anyOf": [{}], "type": "string"}, "type beside anyOf"),
        ({"minLength": 3}, "minLength without type"),
        ({"type": "string", "minimum": 3}, "minimum with type"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "pattern beside maxLength"),
        ({"type": "string", "pattern": "(?!a)b"}, "look-around"),
        ({"type": "string", "format": "email"}, "email"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
        ({"allOf": [{}, {}]}, "allOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"$ref": "#"}, "itself"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"properties": {"a": {"uniqueItems": True}}, "type": "object"}, "uniqueItems"),
    ],
    ids=str,
)
def test_what_it_would_pass_over_is_refused_by_name(schema: Any, named: str):
    with pytest.raises(NotFollowed, match=named):
        exact(json.dumps(schema))
