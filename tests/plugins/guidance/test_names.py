"""A property is the same however its name is escaped, and names follow their patterns."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend
from lsv_testing.grammars.walk import BYTES, draw, follows


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    return GuidanceBackend(BYTES)


def lets_through(backend: GuidanceBackend, schema: Any, text: str) -> bool:
    return follows(backend.compile(StructuredOutputsParams(json=schema)), text)


AGE = {"type": "object", "properties": {"age": {"type": "integer"}}}
STREET = {"type": "object", "properties": {"straße": {"type": "string"}}, "required": ["straße"]}
HEIGHT = {"type": "object", "patternProperties": {"^höhe": {"type": "number"}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (AGE, r'{"\u0061ge":"old"}'),
        (AGE, r'{"\u0061\u0067\u0065":"old"}'),
        (AGE, r'{"age":3,"\u0061ge":"old"}'),
        (STREET, r'{"straße":"A","stra\u00dfe":5}'),
        (STREET, r'{"stra\u00dfe":5}'),
        (HEIGHT, r'{"h\u00f6he_m":"tall"}'),
        ({**AGE, "propertyNames": {"pattern": "^[a-z]+$"}}, r'{"\u0061ge":"old"}'),
        ({"type": "object", "properties": {"a\nb": {"type": "integer"}}}, r'{"a\u000ab":"old"}'),
        ({"type": "object", "properties": {'a"b': {"type": "integer"}}}, r'{"a\u0022b":"old"}'),
        ({"type": "object", "properties": {"a/b": {"type": "integer"}}}, r'{"a\/b":"old"}'),
        ({"type": "object", "properties": {"🐲": {"type": "integer"}}}, r'{"\ud83d\udc32":"old"}'),
        ({"type": "object", "patternProperties": {"^.$": {"type": "integer"}}}, r'{"\ud83d\udc32":"old"}'),
    ],
)
def test_a_listed_name_does_not_come_in_disguise(backend: GuidanceBackend, schema: Any, text: str):
    assert not lets_through(backend, schema, text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (AGE, '{"age":3}'),
        (AGE, '{"ag":"old","ages":[],"é\\"":1}'),
        (STREET, '{"straße":"A","other":5}'),
        (HEIGHT, '{"höhe_m":2.5,"hohe":"tall"}'),
    ],
)
def test_names_as_they_are_get_through(backend: GuidanceBackend, schema: Any, text: str):
    assert lets_through(backend, schema, text)


SCORE = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 0}},
    "required": ["score"],
    "additionalProperties": False,
    "patternProperties": {"^score$": {"type": "integer", "maximum": 50}},
}


def test_a_pattern_may_mean_a_listed_property(backend: GuidanceBackend):
    assert lets_through(backend, SCORE, '{"score":50}')
    assert not lets_through(backend, SCORE, '{"score":51}')


@pytest.mark.parametrize(
    "schema",
    [
        SCORE,
        {**SCORE, "additionalProperties": {"type": "null"}},
        {**SCORE, "patternProperties": {"^(score|s)$": {"maximum": 50}}},
        {**SCORE, "propertyNames": {"enum": ["score", "s"]}, "additionalProperties": {"type": "null"}},
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 6, "maximum": 8, "multipleOf": 5}}},
        {"type": "object", "properties": {"n": {"type": "string", "pattern": "^a", "not": {"pattern": "a"}}}},
        {"type": "object", "properties": {"n": {"type": "string", "format": "date", "pattern": "^x"}}},
        {"type": "object", "properties": {"n": {"$ref": "#/$defs/e"}}, "$defs": {"e": {"enum": []}}},
        {"type": "object", "patternProperties": {"^x": False, "^y": {"type": "null"}}, "additionalProperties": False},
    ],
    ids=lambda schema: json.dumps(schema)[:60],
)
def test_an_answer_never_comes_to_a_place_without_a_way_on(backend: GuidanceBackend, schema: Any):
    grammar = backend.compile(StructuredOutputsParams(json=schema))
    answers = {draw(grammar, seed) for seed in range(60)}
    assert any(answers)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}]}},
        },
    ],
)
def test_a_schema_whose_answers_never_end_is_refused(backend: GuidanceBackend, schema: Any):
    with pytest.raises(BadRequest, match="no value of finite size"):
        backend.compile(StructuredOutputsParams(json=schema))


def test_patterns_that_overlap_hold_at_once(backend: GuidanceBackend):
    schema = {
        "type": "object",
        "patternProperties": {"a": {"type": "integer"}, "b": {"minimum": 3}, "^c": {"const": "c"}},
        "additionalProperties": {"type": "null"},
    }
    for text, right in {
        '{"a":1,"b":3,"c":"c"}': True,
        '{"ab":2}': False,
        '{"ab":3}': True,
        '{"b":"x"}': True,
        '{"ca":"c"}': False,
        '{"z":null}': True,
        '{"z":1}': False,
    }.items():
        assert lets_through(backend, schema, text) is right, text


def test_names_keep_to_all_that_is_asked_of_them(backend: GuidanceBackend):
    names = {"pattern": "^[a-z]+$", "maxLength": 3, "not": {"enum": ["no"]}}
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    grammar = backend.compile(StructuredOutputsParams(json=schema))
    for seed in range(40):
        for name in json.loads(draw(grammar, seed) or "{}"):
            assert re.fullmatch("[a-z]{1,3}", name)
            assert name != "no"
    assert follows(grammar, '{"abc":1}')
    assert not follows(grammar, '{"no":1}')
