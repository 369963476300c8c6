"""JSON Schema, keyword by keyword: what is accepted is right, and what can't be followed is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from lsv.grammars.grammar import Vocabulary
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
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
    ({"contains": {"type": "string"}, "type": "array"}, ['[1,"a"]', '["a"]', "[1]", "[]"]),
    ({"contains": {"type": "string"}, "maxContains": 1, "type": "array"}, ['["a","b"]', '["a",1]', "[1]"]),
    ({"minContains": 1}, ["1"]),
    ({"uniqueItems": True, "items": {"enum": ["a", "b"]}, "type": "array"}, ['["a","a"]', '["b","a"]', "[]"]),
    ({"uniqueItems": True, "maxItems": 1}, ["[1]", "[1,1]"]),
    ({"if": {"type": "string"}, "then": {"minLength": 3}}, ['"a"', '"abc"', "1"]),
    (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "size": {}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["size"]},
        },
        ['{"kind":"a"}', '{"kind":"a","size":1}', '{"kind":"b"}'],
    ),
    ({"dependentRequired": {"a": ["b"]}}, ['{"a":1}', '{"a":1,"b":2}', "{}"]),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, ['{"a":1}', '{"a":1,"b":2}', "{}"]),
    ({"dependencies": {"a": ["b"]}, "type": "object"}, ["{}", '{"b":1}']),
    ({"propertyNames": {"pattern": "^a"}, "type": "object"}, ['{"ab":1}', '{"b":1}', "{}"]),
    ({"propertyNames": {"maxLength": 2}, "properties": {"long": {}}}, ['{"ab":1}', '{"long":1}']),
    ({"propertyNames": False, "type": "object"}, ["{}", '{"a":1}']),
    ({"unevaluatedItems": False, "prefixItems": [{"type": "integer"}]}, ["[1]", "[1,2]", "1"]),
    (
        {
            "allOf": [{"properties": {"a": {"type": "integer"}}}],
            "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}, {"properties": {"c": {}}}],
            "unevaluatedProperties": False,
            "type": "object",
        },
        ['{"a":1}', '{"a":1,"b":1}', '{"a":1,"b":2}', '{"a":1,"c":2}', '{"d":1}', '{"a":1,"b":1,"c":2}'],
    ),
    ({"not": {"type": "string"}}, ['"a"', "1"]),
    ({"not": {"enum": ["a", 1, [2], {"b": 3}]}}, ['"a"', '"b"', "1", "2", "[2]", "[3]", '{"b":3}', '{"b":4}']),
    ({"type": "string", "not": {"pattern": "^a"}}, ['"ab"', '"b"', '""']),
    ({"type": "object", "not": {"required": ["a", "b"]}}, ['{"a":1,"b":2}', '{"a":1}']),
    ({"not": {"properties": {"a": {"type": "integer"}}}}, ['{"a":1}', '{"a":"x"}', "1"]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, ['{"a":1,"b":2}', '{"b":1}', "{}"]),
    (
        {"oneOf": [{"properties": {"k": {"const": kind}}, "required": ["k"]} for kind in range(70)], "type": "object"},
        ['{"k":69}', '{"k":70}', "{}"],
    ),
    ({"$ref": "#/$defs/Foo[int]", "$defs": {"Foo[int]": {"type": "integer"}}}, ["1", '"a"']),
    ({"$ref": "#/$defs/Foo%5Bint%5D", "$defs": {"Foo[int]": {"type": "integer"}}}, ["1", '"a"']),
    ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "integer"}}}, ["1", '"a"']),
    ({"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", "type": "integer"}}}, ["1", '"a"']),
    ({"patternProperties": {"a": {"type": "integer"}, "b": {"minimum": 3}}}, ['{"ab":2}', '{"ab":3}', '{"b":"x"}']),
    ({"type": "string", "pattern": r"^(?=.*\d)(?!admin).{3,}$"}, ['"ab1"', '"abc"', '"admin1"']),
    ({"type": "string", "pattern": r"\bcat\b"}, ['"a cat"', '"cats"']),
    ({"type": "string", "pattern": '^[^"]*$'}, ['"a"', '"a\\"b"']),
    ({"type": "string", "pattern": "^.$"}, ['"\\r"', '"x"']),
    ({"type": "string", "pattern": "(?i)^ab$"}, ['"AB"', '"ac"']),
    ({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}, ["1", "1.2", "1.5"]),
    (
        {
            "minProperties": 2,
            "maxProperties": 2,
            "properties": {"a": {}, "b": {}, "c": {}},
            "additionalProperties": False,
        },
        ['{"a":1}', '{"a":1,"c":1}', '{"a":1,"b":1,"c":1}'],
    ),
    ({"minProperties": 1, "properties": {f"p{n}": {} for n in range(9)}}, ["{}", '{"p7":1}', '{"z":1}']),
    ({"type": "string", "minLength": 2.0}, ['"ab"', '"a"']),
]
"""Schemas that are followed, and texts of which some are valid."""

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems at #: "),
    ({"properties": {"a": {"uniqueItems": True, "items": {"type": "string"}}}}, "uniqueItems at #/properties/a: "),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "type at #/oneOf/0: "),
    ({"not": {"format": "date"}, "type": "string"}, "format at #/not: "),
    ({"not": {"multipleOf": 3}, "type": "number"}, "multipleOf at #/not: "),
    ({"$ref": "http://elsewhere/schema"}, "put its target under $defs"),
    ({"items": {"$ref": "#/$defs/none"}}, "$ref at #/items: #/$defs/none points to nothing in the schema"),
    ({"$ref": "#none"}, "$ref at #: #none is not an $anchor"),
    ({"$dynamicRef": "#x"}, "$dynamicRef at #: "),
    ({"$ref": "#"}, "refers to itself directly"),
    ({"minLength": 3, "maxLength": 1, "type": "string"}, "#: no value"),
    ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": False, "type": "object"}, "no value"),
    ({"properties": {"a": {"enum": []}}, "required": ["a"], "type": "object"}, "#/properties/a: no value"),
    ({"not": {}}, "no value"),
    ({"type": "string", "minLength": -1}, "minLength at #: must be an integer of at least 0, got -1"),
    ({"type": "string", "pattern": "(?<=a)b"}, "pattern at #: (?<=a)b: (?<= is not supported"),
    ({"type": "string", "pattern": "a(?!b)"}, "look-ahead"),
    ({"type": "object", "patternProperties": {"(": {}}}, "patternProperties at #: (: "),
    ({"type": "integer", "multipleOf": 123_457}, "multipleOf at #: "),
    ({"type": "integer", "const": 2**60 + 1}, "more digits"),
]
"""Refused schemas, and the parts of the message: the keyword, the path, the advice."""


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


NEUTRAL: dict[str, dict[str, Any]] = {
    "zod's record": {
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "integer"},
    },
    "uniqueItems": {"type": "array", "uniqueItems": False},
    "dependentRequired": {"type": "object", "dependentRequired": {}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": True},
    "not": {"not": False},
    "if": {"if": {"type": "string"}},
    "then": {"then": False},
    "oneOf": {"oneOf": [True]},
    "contains": {"contains": True, "minContains": 0},
    "annotations": {"deprecated": True, "contentSchema": {"not": {}}, "$vocabulary": {}, "x-order": 3},
    **{name: {"type": "string", "format": name} for name in ("path", "password", "binary", "byte", "int32", "json")},
    **{
        name: {"type": "string", "format": name} for name in ("regex", "uri-reference", "iri-reference", "json-pointer")
    },
}
"""Schemas with keywords without effect, and with weak formats."""


@pytest.mark.parametrize("schema", NEUTRAL.values(), ids=NEUTRAL)
def test_what_asks_for_nothing_is_followed(backend: GuidanceBackend, schema: dict[str, Any]):
    texts = {"object": '{"ab":1}', "array": "[1,1]", "string": '"/a"', None: "[1]"}
    matcher = backend.compile(StructuredOutputsParams(json=schema)).begin()
    assert matcher.accept([*texts[schema.get("type")].encode(), EOS])


@pytest.mark.parametrize("schema", [True, {}])
def test_a_schema_that_asks_for_nothing_is_any_json(backend: GuidanceBackend, schema: Any):
    assert backend.compile(StructuredOutputsParams(json=json.dumps(schema))).begin().accept([*b'{"a":[1]}', EOS])


@pytest.mark.parametrize(("schema", "why"), REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_a_refusal_names_the_keyword_and_its_schema(backend: GuidanceBackend, schema: dict[str, Any], why: str):
    with pytest.raises(BadRequest, match="can't be followed") as refused:
        backend.compile(StructuredOutputsParams(json=schema))
    assert why in refused.value.message
