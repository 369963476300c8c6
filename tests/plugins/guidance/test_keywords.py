"""JSON Schema, keyword by keyword: what is accepted is right, and what can't be followed is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from lsv.errors import BadRequest
from lsv.grammars.grammar import Vocabulary
from lsv.request.structured import StructuredOutputsParams
from lsv_guidance.backend import GuidanceBackend

EOS = 256

FOLLOWED: list[tuple[dict[str, Any], list[str]]] = [
    ({"type": "integer"}, ["1", "-0", "01", "1.5", '"1"', "null"]),
    ({"type": "integer", "multipleOf": 3}, ["3", "4", "-6", "0"]),
    ({"type": "number", "multipleOf": 0.5}, ["0.3", "1.5"]),
    ({"type": "number"}, ["1e5", "1.5E-3", "1.", ".5", "-1"]),
    ({"type": "number", "minimum": 3}, ["2.9", "3", "3.1", "-4"]),
    ({"type": "number", "exclusiveMaximum": 3}, ["3", "3.0", "2.999"]),
    ({"type": "number", "maximum": 5}, ["5e3", "5.01", "5"]),
    ({"minimum": 3}, ['"x"', "2", "3", "[]"]),
    ({"type": ["string", "null"]}, ["null", '"x"', "1"]),
    ({"type": "string", "minLength": 2}, ['"a"', '"ab"']),
    ({"type": "string", "maxLength": 1}, ['"é"', '"𝄞"', '"ab"', '""']),
    ({"type": "string", "pattern": "b"}, ['"abc"', '"ac"']),
    ({"pattern": "^a"}, ['"b"', '"a"', "5"]),
    ({"type": "string", "pattern": "^.$"}, ['"\\n"', '"x"']),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, ['["a",1]', '["a"]', "[1]"]),
    ({"type": "array", "items": False}, ["[1]", "[]"]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, ["[]", "[1]", "[1,2]", "[1,2,3]"]),
    ({"items": {"type": "integer"}}, ['["a"]', "[1]", "3"]),
    ({"maxItems": 1}, ["[1,2]", "[1]", "{}"]),
    ({"type": "object", "minProperties": 2}, ['{"a":1}', '{"a":1,"b":2}']),
    ({"type": "object", "maxProperties": 1}, ['{"a":1}', '{"a":1,"b":2}']),
    ({"type": "object", "required": ["z"]}, ["{}", '{"z":1}', '{"a":0,"z":1}']),
    ({"required": ["a"]}, ["{}", "3"]),
    ({"properties": {"a": {"type": "integer"}}}, ["[1]", '{"a":1}', '{"a":"x"}', '{"b":1,"a":"x"}']),
    ({"type": "object", "properties": {"a": False}}, ['{"a":1}', "{}"]),
    ({"type": "object", "additionalProperties": False}, ['{"a":1}', "{}"]),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        ['{"a":1,"b":2}', '{"a":1,"b":"2"}', '{"a":"1"}'],
    ),
    ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, ['{"ab":"x"}', '{"ab":1}', '{"b":"x"}']),
    ({"const": 1}, ["1", "2"]),
    ({"enum": [1, "a", None, {"b": [1, 2]}]}, ['{"b":[1,2]}', '{"b":[2,1]}', '"a"', "null", "2"]),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, ["1", '"x"', "null"]),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}], "type": "string"}, ["1", '"x"']),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"x"', "null"]),
    (
        {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}], "type": "object"},
        ["{}", '{"a":1}', '{"a":"x"}'],
    ),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
                {"type": "object", "properties": {"b": {}}},
            ]
        },
        ['{"b":1}', '{"a":1}', "{}"],
    ),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "maximum": 3}, ["4", "3"]),
    ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "integer"}}}, ["1", '"x"']),
    ({"$id": "http://a/b", "$defs": {"x": {"$id": "y", "type": "integer"}}, "$ref": "y"}, ['"s"', "1"]),
    (
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "additionalProperties": False},
        ['{"n":{"n":{}}}', '{"n":1}'],
    ),
    ({"title": "x", "default": 1, "examples": [1], "$comment": "c", "readOnly": True, "type": "integer"}, ["1", '"x"']),
    ({"unheard-of": 1}, ["1", "{}"]),
]
"""Schemas that are followed, and texts of which some are valid."""

REFUSED: list[dict[str, Any]] = [
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "string"}},
    {"minContains": 1},
    {"if": {"type": "string"}, "then": {"minLength": 3}},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {}}},
    {"dependencies": {"a": ["b"]}},
    {"propertyNames": {"pattern": "^a"}},
    {"unevaluatedItems": False},
    {"unevaluatedProperties": False},
    {"not": {"type": "string"}},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"$dynamicRef": "#x"},
    {"$ref": "http://elsewhere/schema"},
    {"minLength": 3, "maxLength": 1, "type": "string"},
    {"properties": {"a": {}}, "required": ["b"], "additionalProperties": False, "type": "object"},
]


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    tokens = [bytes([byte]) for byte in range(256)] + [b"</s>"]
    return GuidanceBackend(Vocabulary(tokens, frozenset({EOS}), (EOS,), lambda text: list(text.encode())))


@pytest.mark.row("F-166")
@pytest.mark.parametrize(("schema", "texts"), FOLLOWED, ids=lambda value: json.dumps(value)[:50])
def test_what_is_accepted_is_valid(backend: GuidanceBackend, schema: dict[str, Any], texts: list[str]):
    grammar, accepted = backend.compile(StructuredOutputsParams(json=schema)), 0
    for text in texts:
        matcher = grammar.begin()
        if matcher.accept([*text.encode(), EOS]):
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
            accepted += 1
    assert accepted


@pytest.mark.parametrize("schema", REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_what_is_not_followed_is_refused(backend: GuidanceBackend, schema: dict[str, Any]):
    with pytest.raises(BadRequest, match="can't be followed"):
        backend.compile(StructuredOutputsParams(json=schema))
