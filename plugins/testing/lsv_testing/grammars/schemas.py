"""JSON schemas of draft 2020-12, keyword by keyword, each with values that it allows and values that it does not.

A back end follows a schema exactly or refuses it; it may follow it more narrowly (properties in order, plain numbers),
but must never allow a value that the schema does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """One schema."""

    schema: Any
    right: list[Any]
    """Values that it allows; a back end that follows it takes at least one."""
    wrong: list[Any]
    """Values that it does not allow."""


_SCALARS: list[Any] = [None, True, 3, 1.5, "a"]
_OLDER = "https://json-schema.org/draft/2019-09/schema"
_INT = {"type": "integer"}
_STR = {"type": "string"}
_LEAF = {"type": "object", "properties": {"n": _INT}, "required": ["n"], "additionalProperties": False}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def _nested(depth: int) -> tuple[Any, Any]:
    schema: Any = _INT
    value: Any = 1
    for _ in range(depth):
        schema, value = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}, [value]
    return schema, value


_TYPES = [
    Case(True, _SCALARS, []),
    Case({}, _SCALARS, []),
    Case(False, [], _SCALARS),
    Case(_INT, [0, -1, 12345678901], [1.5, "1", None, True, [1], {}]),
    Case({"type": "number"}, [0, -1.25, 3], ["1", None, False, []]),
    Case(_STR, ["", "a", "é𝄞", 'say "x"', "line\nbreak", "back\\slash"], [1, None, True, ["a"]]),
    Case({"type": "boolean"}, [True, False], [0, 1, "true", None]),
    Case({"type": "null"}, [None], [0, "", False, []]),
    Case({"type": "array"}, [[], [1], [None, "a", [1]]], [1, {}, "[]"]),
    Case({"type": "object"}, [{}, {"a": 1}, {"a": {"b": []}}], [[], 1, "{}"]),
    Case({"type": ["string", "null"]}, ["a", None], [1, True, []]),
    Case({"type": ["integer", "string"], "minimum": 3}, [3, "a"], [2, None]),
    Case({"type": ["integer", "string"], "maxLength": 1}, [30, "a"], ["ab", None]),
    Case({"type": ["array", "object"], "maxItems": 1}, [[1], {}], [[1, 2], 1]),
    Case({"type": ["number"]}, [1.5], ["a"]),
    Case({"type": "whole"}, [], _SCALARS),
    Case({"type": 3}, [], _SCALARS),
    Case({"title": "T", "description": "D", "examples": [1], "default": 2, "deprecated": True, **_INT}, [1], ["a"]),
    Case({"$comment": "c", "readOnly": True, "writeOnly": False, **_STR}, ["a"], [1]),
    Case({"$schema": "https://json-schema.org/draft/2020-12/schema", **_INT}, [1], ["a"]),
    Case({"x-own": {"minimum": 100}, **_INT}, [1], ["a"]),
]

_VALUES = [
    Case({"enum": [1, "a", None]}, [1, "a", None], [2, "b", True, []]),
    Case({"enum": [[], [1, 2], {"a": 1}]}, [[1, 2], {"a": 1}], [[1], {}, {"a": 2}]),
    Case({"enum": ['say "x"', "back\\slash", "line\nbreak", "été"]}, ['say "x"', "été"], ["say", "x"]),
    Case({"enum": [True, False]}, [True], [1, 0, None]),
    Case({"enum": [1.5, -2]}, [1.5, -2], [1, 2]),
    Case({"enum": [1, "a"], "type": "string"}, ["a"], [1, "b"]),
    Case({"enum": ["a", "b"], "type": "string"}, ["a", "b"], [1, "c"]),
    Case({"enum": ["a", "bcd"], "maxLength": 1}, ["a"], ["bcd"]),
    Case({"enum": []}, [], _SCALARS),
    Case({"enum": "ab"}, [], []),
    Case({"const": 3}, [3], [4, "3"]),
    Case({"const": None}, [None], [0, "", False]),
    Case({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{"a": [1]}, {}]),
    Case({"const": "x", "type": "string"}, ["x"], ["y", 1]),
    Case({"const": "x", "type": "integer"}, [], ["x", 1]),
    Case({"const": 5, "minimum": 6}, [], [5, 6]),
    Case({"const": 5, "enum": [5, 6]}, [5], [6]),
    Case({"const": False}, [False], [0, None]),
    Case({"const": ""}, [""], ["a", None]),
]

_NUMBERS = [
    Case({**_INT, "minimum": 3}, [3, 40], [2, -3]),
    Case({**_INT, "maximum": 3}, [3, -40], [4, 30]),
    Case({**_INT, "minimum": -5, "maximum": 5}, [-5, 0, 5], [-6, 6]),
    Case({**_INT, "exclusiveMinimum": 3}, [4], [3, 2]),
    Case({**_INT, "exclusiveMaximum": 3}, [2], [3, 4]),
    Case({**_INT, "minimum": 1, "exclusiveMinimum": 3}, [4], [1, 3]),
    Case({**_INT, "maximum": 5, "exclusiveMaximum": 3}, [2], [3, 5]),
    Case({**_INT, "minimum": 99, "maximum": 101}, [99, 100, 101], [98, 102, 9, 1000]),
    Case({**_INT, "minimum": 7, "maximum": 7}, [7], [6, 8]),
    Case({**_INT, "minimum": 3, "maximum": 2}, [], [2, 3]),
    Case({**_INT, "minimum": 1.5}, [2], [1]),
    Case({**_INT, "minimum": 10**20}, [10**20], [10**19]),
    Case({**_INT, "minimum": True}, [], []),
    Case({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.5, 1], [-0.1, 1.1, 2]),
    Case({"type": "number", "minimum": -2.5}, [-2.5, -1, 3], [-2.75, -3]),
    Case({"type": "number", "exclusiveMinimum": 0}, [0.1, 3], [0, -1]),
    Case({"type": "number", "exclusiveMaximum": 1.25}, [1.2, -3], [1.25, 2]),
    Case({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5], [0, 1]),
    Case({"type": "number", "minimum": 0.001, "maximum": 0.01}, [0.005], [0.0001, 0.1]),
    Case({"type": "number", "minimum": 3, "maximum": 3}, [3], [2.5, 3.5]),
    Case({**_INT, "multipleOf": 3}, [0, 3, 9], [1, 10]),
    Case({**_INT, "multipleOf": 5, "minimum": 3, "maximum": 12}, [5, 10], [3, 4, 12, 15]),
    Case({"type": "number", "multipleOf": 0.5}, [1, 1.5], [0.25]),
    Case({"multipleOf": 4}, [8, "a"], [9]),
    Case({**_INT, "multipleOf": 0}, [], []),
    Case({"minimum": 3}, [3, "a", None], [2]),
    Case({"exclusiveMaximum": 3}, [2, "a"], [3]),
]

_STRINGS = [
    Case({**_STR, "minLength": 2}, ["ab", "abc"], ["", "a"]),
    Case({**_STR, "maxLength": 2}, ["", "ab"], ["abc"]),
    Case({**_STR, "minLength": 1, "maxLength": 3}, ["a", "abc"], ["", "abcd"]),
    Case({**_STR, "minLength": 2, "maxLength": 2}, ["é𝄞", "ab"], ["a", "abc"]),
    Case({**_STR, "maxLength": 0}, [""], ["a"]),
    Case({**_STR, "minLength": 3, "maxLength": 1}, [], ["a", "ab", "abc"]),
    Case({**_STR, "maxLength": -1}, [], []),
    Case({**_STR, "pattern": "^a+$"}, ["a", "aaa"], ["", "b", "ab"]),
    Case({**_STR, "pattern": r"^\d{3}-\d{2}$"}, ["123-45"], ["12-345", "123-456", "x"]),
    Case({**_STR, "pattern": "^(yes|no)$"}, ["yes", "no"], ["maybe", ""]),
    Case({**_STR, "pattern": "^[A-Z][a-z]*$"}, ["Nora", "A"], ["nora", ""]),
    Case({**_STR, "pattern": "b"}, ["b"], ["", "a"]),
    Case({**_STR, "pattern": "^a|b$"}, ["a", "b"], ["", "c"]),
    Case({**_STR, "pattern": "^ab"}, ["ab"], ["ba", ""]),
    Case({**_STR, "pattern": "yz$"}, ["yz"], ["zy"]),
    Case({**_STR, "pattern": "^.$"}, ["a"], ["", "ab"]),
    Case({**_STR, "pattern": '^"$'}, ['"'], ["a", ""]),
    Case({**_STR, "pattern": r"^\\$"}, ["\\"], ["a", ""]),
    Case({**_STR, "pattern": r"^a\nb$"}, ["a\nb"], ["a", "ab"]),
    Case({**_STR, "pattern": r"^\s$"}, [" "], ["a"]),
    Case({**_STR, "pattern": r"^[^a]$"}, ["b"], ["a", ""]),
    Case({**_STR, "pattern": "(?=a)b"}, [], ["a", "b", "ab"]),
    Case({**_STR, "pattern": "(?!a)b"}, ["b"], ["a"]),
    Case({**_STR, "pattern": r"(a)\1"}, ["aa"], ["a", "ab"]),
    Case({**_STR, "pattern": r"\bcat\b"}, ["cat"], ["concat"]),
    Case({**_STR, "pattern": "(a"}, [], []),
    Case({**_STR, "pattern": "^[a-c]{1,9}$", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abca", "x"]),
    Case({**_STR, "pattern": "^a{0,99}$", "maxLength": 2}, ["a"], ["aaa"]),
    Case({"pattern": "^a$"}, ["a", 3], ["b"]),
    Case({"minLength": 2}, ["ab", 3], ["a"]),
    Case({**_STR, "format": "date"}, ["2026-01-31"], []),
    Case({**_STR, "format": "date-time"}, ["2026-01-31T10:00:00Z"], []),
    Case({**_STR, "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], []),
    Case({**_STR, "format": "email"}, ["a@example.org"], []),
    Case({**_STR, "format": "ipv4"}, ["127.0.0.1"], []),
    Case({**_STR, "format": "hostname"}, ["example.org"], []),
    Case({**_STR, "format": "uri"}, ["https://example.org/a"], []),
    Case({**_STR, "format": "surprise"}, ["a"], []),
    Case({**_STR, "format": "date", "maxLength": 3}, [], ["2026-01-31"]),
    Case({**_STR, "contentEncoding": "base64", "contentMediaType": "text/plain"}, ["YQ=="], [1]),
]

_ARRAYS = [
    Case({"type": "array", "items": _INT}, [[], [1, 2]], [["a"], [1, "a"]]),
    Case({"type": "array", "items": True}, [[], [1, "a"]], [1]),
    Case({"type": "array", "items": False}, [[]], [[1]]),
    Case({"type": "array", "items": {}}, [[1, None]], [{}]),
    Case({"type": "array", "items": _INT, "minItems": 2}, [[1, 2], [1, 2, 3]], [[], [1]]),
    Case({"type": "array", "items": _INT, "maxItems": 2}, [[], [1, 2]], [[1, 2, 3]]),
    Case({"type": "array", "items": _INT, "minItems": 1, "maxItems": 1}, [[1]], [[], [1, 2]]),
    Case({"type": "array", "maxItems": 0}, [[]], [[1]]),
    Case({"type": "array", "minItems": 2, "maxItems": 1}, [], [[1], [1, 2]]),
    Case({"type": "array", "minItems": -1}, [], []),
    Case({"type": "array", "items": _INT, "minItems": 3, "maxItems": 5}, [[1, 2, 3]], [[1, 2], [1, 2, 3, 4, 5, 6]]),
    Case({"type": "array", "prefixItems": [_INT, _STR]}, [[1, "a"]], [["a"], [1, 1]]),
    Case({"type": "array", "prefixItems": [_INT, _STR], "items": False}, [[1, "a"]], [[1, "a", 2], ["a"]]),
    Case({"type": "array", "prefixItems": [_INT], "items": _STR}, [[1, "a", "b"]], [[1, 2], ["a"]]),
    Case({"type": "array", "prefixItems": [_INT], "items": _STR, "minItems": 2}, [[1, "a"]], [[1], [1, 2]]),
    Case({"type": "array", "prefixItems": [_INT, _INT], "maxItems": 1}, [[1]], [[1, 2], ["a"]]),
    Case({"type": "array", "prefixItems": [True, _INT]}, [["a", 1]], [["a", "b"]]),
    Case({"type": "array", "prefixItems": [False]}, [[]], [[1]]),
    Case({"$schema": _OLDER, "type": "array", "items": [_INT, _STR]}, [[1, "a"]], [["a"]]),
    Case({"type": "array", "items": _INT, "additionalItems": False}, [[1]], [["a"]]),
    Case({"type": "array", "uniqueItems": True}, [[1, 2]], [[1, 1]]),
    Case({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}, [[True]], [[True, True]]),
    Case({"type": "array", "uniqueItems": False, "items": _INT}, [[1, 1]], [["a"]]),
    Case({"type": "array", "contains": _INT}, [[1]], [[], ["a"]]),
    Case({"type": "array", "contains": _INT, "minContains": 2}, [[1, 2]], [[1]]),
    Case({"type": "array", "contains": _INT, "maxContains": 1}, [[1]], [[1, 2]]),
    Case({"type": "array", "unevaluatedItems": False}, [[]], [[1]]),
    Case({"type": "array", "prefixItems": [_INT], "unevaluatedItems": False}, [[1]], [[1, 2]]),
    Case({"items": _INT}, [[1], "a"], [["a"]]),
    Case({"minItems": 1}, [[1], "a"], [[]]),
    Case({"prefixItems": [_INT]}, [[1], "a"], [["a"]]),
    Case({"type": "array", "items": {"type": "array", "items": _INT, "maxItems": 1}, "maxItems": 1},
         [[[1]]], [[[1, 2]]]),
]  # fmt: skip

_OBJECTS = [
    Case(_object({"a": _INT}), [{"a": 1}, {}], [{"a": "x"}]),
    Case(_object({"a": _INT}, required=["a"]), [{"a": 1}], [{}, {"a": "x"}]),
    Case(_object({"a": _INT, "b": _STR}, required=["a", "b"]), [{"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
    Case(_object({"a": _INT, "b": _STR}, required=["b"], additionalProperties=False),
         [{"b": "x"}], [{"a": 1}, {"b": "x", "c": 1}]),
    Case(_object({"a": _INT}, additionalProperties=False), [{}, {"a": 1}], [{"b": 1}]),
    Case(_object({"a": _INT}, additionalProperties=True), [{"a": 1}, {"b": "x"}], [{"a": "x"}]),
    Case(_object({"a": _INT}, additionalProperties=_STR), [{"a": 1, "b": "x"}], [{"a": "x"}, {"b": 1}]),
    Case(_object({}, additionalProperties=_INT), [{}, {"a": 1}], [{"a": "x"}]),
    Case(_object({}, additionalProperties=False), [{}], [{"a": 1}]),
    Case(_object({"a": True}, required=["a"]), [{"a": 1}, {"a": None}], [{}]),
    Case(_object({"a": False}), [{}], [{"a": 1}]),
    Case(_object({"a": False}, required=["a"]), [], [{}, {"a": 1}]),
    Case(_object({'q"': _INT, "ü\n": _STR}, required=['q"', "ü\n"]),
         [{'q"': 1, "ü\n": "x"}], [{'q"': "x", "ü\n": "x"}]),
    Case(_object({"": _INT}, required=[""]), [{"": 1}], [{}]),
    Case(_object({"a": _INT}, required=["b"]), [{"b": 1}], [{}, {"a": 1}]),
    Case(_object({"a": _INT}, required=["b"], additionalProperties=False), [], [{}, {"a": 1}]),
    Case(_object({}, required=["a"], additionalProperties=_INT), [{"a": 1}], [{}, {"a": "x"}]),
    Case(_object({"a": _object({"b": _INT}, required=["b"])}, required=["a"]), [{"a": {"b": 1}}], [{"a": {}}, {}]),
    Case(_object({"a": _INT, "ab": _STR}, additionalProperties={"type": "null"}),
         [{"a": 1, "ab": "x"}], [{"ab": 1}, {"abc": 1}]),
    Case(_object({"a": _INT}, minProperties=1), [{"a": 1}], [{}]),
    Case(_object({"a": _INT, "b": _INT}, maxProperties=1), [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    Case(_object({"a": _INT, "b": _INT}, required=["a", "b"], minProperties=2, maxProperties=2),
         [{"a": 1, "b": 2}], [{"a": 1}]),
    Case(_object({}, maxProperties=0), [{}], [{"a": 1}]),
    Case({"type": "object", "minProperties": 2}, [{"a": 1, "b": 2}], [{}, {"a": 1}]),
    Case({"type": "object", "patternProperties": {"^x": _INT}}, [{"x": 1}], [{"x": "a"}]),
    Case({"type": "object", "patternProperties": {"^x": _INT}, "additionalProperties": False}, [{"x": 1}], [{"y": 1}]),
    Case(_object({"xa": _STR}, patternProperties={"^x": _INT}), [{"xb": 1}], [{"xa": "a"}, {"xb": "a"}]),
    Case({"type": "object", "patternProperties": {"a": _INT, "b": _STR}},
         [{"a": 1, "b": "x"}], [{"a": "x"}, {"ab": 1}]),
    Case({"type": "object", "propertyNames": {"pattern": "^a"}}, [{"a": 1}], [{"b": 1}]),
    Case({"type": "object", "propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"ab": 1}]),
    Case({"type": "object", "dependentRequired": {"a": ["b"]}}, [{}, {"a": 1, "b": 2}], [{"a": 1}]),
    Case({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, [{}], [{"a": 1}]),
    Case({"type": "object", "dependencies": {"a": ["b"]}}, [{}], []),
    Case({"type": "object", "unevaluatedProperties": False}, [{}], [{"a": 1}]),
    Case(_object({"a": _INT}, unevaluatedProperties=False), [{"a": 1}], [{"b": 1}]),
    Case({"properties": {"a": _INT}}, [{"a": 1}, "x"], [{"a": "x"}]),
    Case({"required": ["a"]}, [{"a": 1}, 3], [{}]),
    Case({"additionalProperties": False}, [{}, 3], [{"a": 1}]),
    Case({"type": "object", "properties": []}, [], []),
    Case({"type": "object", "required": "a"}, [], []),
]  # fmt: skip

_COMBINED = [
    Case({"anyOf": [_INT, _STR]}, [1, "a"], [None, [], 1.5]),
    Case({"anyOf": [{"const": 1}, {"const": 2}]}, [1, 2], [3]),
    Case({"anyOf": [{**_INT, "maximum": 3}, {**_INT, "minimum": 7}]}, [3, 7], [4, 6]),
    Case({"anyOf": [_LEAF, {"type": "null"}]}, [{"n": 1}, None], [{}, {"n": "x"}]),
    Case({"anyOf": [True, _INT]}, [1, "a"], []),
    Case({"anyOf": [False, _INT]}, [1], ["a"]),
    Case({"anyOf": [False]}, [], _SCALARS),
    Case({"anyOf": []}, [], []),
    Case({"anyOf": [_INT, _STR], "minimum": 3}, [3, "a"], [2]),
    Case({"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": -3}]}, [3, -3], [0, "a"]),
    Case(_object({"a": _INT}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]), [{"a": 1}], [{}]),
    Case({"oneOf": [_INT, _STR]}, [1, "a"], [None]),
    Case({"oneOf": [{"const": "a"}, {"const": "b"}]}, ["a", "b"], ["c"]),
    Case({"oneOf": [_INT, {"type": "number"}]}, [1.5], [1, "a"]),
    Case({"oneOf": [{**_INT, "minimum": 2}, {**_INT, "maximum": 5}]}, [1, 6], [3]),
    Case({"oneOf": [_STR, {**_STR, "maxLength": 3}]}, ["abcd"], ["abc"]),
    Case({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, ["a", "c"], ["b"]),
    Case({"oneOf": [_object({"k": {"const": "x"}}, required=["k"]), _object({"k": {"const": "y"}}, required=["k"])]},
         [{"k": "x"}, {"k": "y"}], [{"k": "z"}, {}]),
    Case({"oneOf": [True, True]}, [], _SCALARS),
    Case({"oneOf": [True, False]}, [1], []),
    Case({"allOf": [_INT]}, [1], ["a"]),
    Case({"allOf": [_INT, {"minimum": 3}]}, [3], [2, "a"]),
    Case({"allOf": [{**_INT, "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6]),
    Case({"allOf": [_INT, _STR]}, [], [1, "a"]),
    Case({"allOf": [_object({"a": _INT}, required=["a"]), _object({"b": _STR}, required=["b"])]},
         [{"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
    Case({"allOf": [True, {**_STR, "maxLength": 1}]}, ["a"], ["ab", 1]),
    Case({"allOf": [_INT], "minimum": 3}, [3], [2]),
    Case({"not": _STR}, [1, None], ["a"]),
    Case({"not": {}}, [], _SCALARS),
    Case({**_INT, "not": {"const": 3}}, [4], [3]),
    Case({"if": _INT, "then": {"minimum": 3}}, [3, "a"], [2]),
    Case({"if": _STR, "else": _INT}, ["a", 1], [None]),
    Case({"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "type": "object"},
         [{"a": 2}], [{"a": 1}]),
    Case({"then": {"minimum": 3}, **_INT}, [1, 3], ["a"]),
]  # fmt: skip

_TREE = _object(
    {"v": _INT, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    required=["v", "next"],
    additionalProperties=False,
)
_REFERENCES = [
    Case({"$ref": "#/$defs/a", "$defs": {"a": _INT}}, [1], ["a"]),
    Case({"$ref": "#/definitions/a", "definitions": {"a": _STR}}, ["a"], [1]),
    Case({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": _INT}}, [1], ["a"]),
    Case({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": _INT}}, [3], [2]),
    Case({"$ref": "#/$defs/a~1b", "$defs": {"a/b": _INT}}, [1], ["a"]),
    Case({"$ref": "#/$defs/a~0b", "$defs": {"a~b": _INT}}, [1], ["a"]),
    Case({"$ref": "#/$defs/a%25b", "$defs": {"a%b": _INT}}, [1], ["a"]),
    Case({"$ref": "#/$defs/a/items", "$defs": {"a": {"type": "array", "items": _INT}}}, [1], ["a"]),
    Case({"$ref": "#/prefixItems/0", "prefixItems": [_INT]}, [1], ["a"]),
    Case({"$ref": "#here", "$defs": {"a": {"$anchor": "here", **_INT}}}, [1], ["a"]),
    Case({"$ref": "#/$defs/none"}, [], []),
    Case({"$ref": "#"}, [], []),
    Case({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, [], []),
    Case({"$ref": "http://127.0.0.1:1/schema"}, [], []),
    Case({"$ref": "other.json"}, [], []),
    Case({"$ref": 3}, [], []),
    Case({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a", **_INT}}}, [1], ["a"]),
    Case({"$id": "http://example.org/root", "$ref": "#/$defs/a", "$defs": {"a": _INT}}, [1], ["a"]),
    Case({"$defs": {"a": {"$id": "http://example.org/a", **_INT}}, "$ref": "http://example.org/a"}, [1], ["a"]),
    Case(_TREE, [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1}, {"v": 1, "next": {}}]),
    Case({"type": "array", "items": {"$ref": "#"}}, [[], [[]], [[[], []]]], [[1], 1]),
    Case(
        _object({"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}, required=["a", "b"])
        | {"$defs": {"n": _LEAF}},
        [{"a": {"n": 1}, "b": {"n": 2}}], [{"a": {"n": 1}}, {"a": {}, "b": {"n": 2}}],
    ),
    Case(_object({"$ref": _STR}, required=["$ref"]), [{"$ref": "x"}], [{}, {"$ref": 1}]),
    Case(_object({"type": _INT, "enum": _STR}, required=["type"]), [{"type": 1}], [{"type": "x"}]),
    Case({"const": {"$ref": "#/nowhere"}}, [{"$ref": "#/nowhere"}], [{}]),
    Case(*(lambda pair: (pair[0], [pair[1]], [1, []]))(_nested(12))),
    Case(3, [], []),
    Case([], [], []),
    Case("x", [], []),
]  # fmt: skip

CASES: dict[str, list[Case]] = {
    "types": _TYPES,
    "values": _VALUES,
    "numbers": _NUMBERS,
    "strings": _STRINGS,
    "arrays": _ARRAYS,
    "objects": _OBJECTS,
    "combined": _COMBINED,
    "references": _REFERENCES,
}
