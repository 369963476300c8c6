"""Rewritten schemas against their originals, by an implementation of the standard: the same values, or fewer."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend
from lsv_guidance.schemas.json_text import read_json
from lsv_guidance.schemas.refusal import NotFollowed
from lsv_guidance.schemas.write import rewrite
from lsv_testing.grammars.walk import BYTES, draw

VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, 6, -1, 1.5, 0.25, "", "a", "b", "ab", "abc", [], [1], ["a"], [1, "a"],
    ["a", 1], [1, 1], [1, 2, 3], ["a", "b"], [None, 1, "a"], [[1]], {}, {"a": 1}, {"a": "x"}, {"b": 1},
    {"a": 1, "b": 2},
    {"a": 1, "b": "x"}, {"a": "x", "b": "y"}, {"c": 1}, {"a": 1, "c": 1}, {"b": 1, "c": None}, {"a": {"a": 1}},
    {"a": 1, "b": 2, "c": 3}, {"ab": 1}, {"ab": "x"}, {"a": [1]}, {"a": None},
]  # fmt: skip
INT, STR = {"type": "integer"}, {"type": "string"}

EXACT: dict[str, Any] = {
    "types": {"type": ["string", "integer"], "minimum": 1, "maxLength": 1},
    "enum and bounds": {"enum": [1, "a", "abc", None, [1], {"a": 1}], "maxLength": 2},
    "allOf": {"allOf": [{"properties": {"a": INT}}, {"required": ["a"]}, {"properties": {"a": {"minimum": 1}}}]},
    "allOf of arrays": {"allOf": [{"prefixItems": [INT]}, {"items": {"not": {"type": "null"}}}], "type": "array"},
    "anyOf beside keywords": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": INT}},
    "oneOf that overlaps": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    "oneOf of texts": {"oneOf": [{"minLength": 2}, {"pattern": "^a"}], "type": "string"},
    "not of a type": {"not": {"type": ["string", "object"]}},
    "not of values": {"not": {"enum": [1, "a", None, True, [1], {"a": 1}]}},
    "not of a pattern": {"type": "string", "not": {"pattern": "b"}},
    "not of bounds": {"not": {"minimum": 1, "maximum": 2}},
    "not of required": {"not": {"required": ["a", "b"]}},
    "not of properties": {"not": {"properties": {"a": INT}}},
    "not of not": {"not": {"not": {"properties": {"a": INT}, "minLength": 2}}},
    "not of allOf": {"not": {"allOf": [{"minLength": 1}, {"maxLength": 1}]}, "type": "string"},
    "not of anyOf": {"not": {"anyOf": [STR, {"required": ["a"]}]}},
    "not of oneOf": {"not": {"oneOf": [{"minLength": 1}, {"maxLength": 1}]}, "type": "string"},
    "not of if": {"not": {"if": {"minLength": 1}, "then": {"pattern": "a"}, "else": False}, "type": "string"},
    "not of sizes": {"not": {"minItems": 1, "maxItems": 2}, "type": "array"},
    "not of items": {"not": {"prefixItems": [INT]}},
    "if and then": {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "type": "object"},
    "if and else": {"if": {"type": "string"}, "else": {"type": "object"}},
    "if, then and else": {
        "if": {"properties": {"a": {"const": 1}}},
        "then": {"required": ["b"]},
        "else": {"minProperties": 1},
    },
    "dependentRequired": {"dependentRequired": {"a": ["b"], "c": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"properties": {"b": INT}}}},
    "propertyNames": {"propertyNames": {"pattern": "^[ab]$"}},
    "propertyNames of constants": {"propertyNames": {"enum": ["a", "c"]}, "properties": {"b": INT}},
    "patterns that overlap": {"patternProperties": {"a": INT, "b": {"minimum": 2}}, "additionalProperties": False},
    "patterns of listed names": {"properties": {"a": INT}, "patternProperties": {"^a$": {"minimum": 1}}},
    "unevaluatedProperties": {"properties": {"a": {}}, "anyOf": [{"properties": {"b": INT}}, True],
                              "unevaluatedProperties": False},
    "unevaluatedProperties and if": {
        "if": {"properties": {"a": INT}, "required": ["a"]},
        "then": {"properties": {"b": {}}},
        "unevaluatedProperties": False,
    },
    "unevaluatedProperties and $ref": {"$defs": {"x": {"properties": {"a": {}}}}, "$ref": "#/$defs/x",
                                       "unevaluatedProperties": {"type": "integer"}},
    "unevaluatedItems": {
        "prefixItems": [INT],
        "anyOf": [{"prefixItems": [True, STR]}, True],
        "unevaluatedItems": False,
    },
    "contains": {"contains": STR, "type": "array"},
    "no contains": {"contains": STR, "maxContains": 0, "minContains": 0, "type": "array"},
    "uniqueItems": {"uniqueItems": True, "items": {"enum": [1, "a"]}},
    "minProperties": {"minProperties": 2, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
    "maxProperties": {"maxProperties": 1},
    "$ref beside keywords": {"$defs": {"x": {"properties": {"a": INT}}}, "$ref": "#/$defs/x", "required": ["a"]},
    "$id within": {"$id": "http://x.org/r", "$defs": {"x": {"$id": "y", **INT}}, "properties": {"a": {"$ref": "y"}}},
    "$dynamicRef": {"$id": "http://x.org", "$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}, "b": INT}},
    "recursion": {"properties": {"a": {"anyOf": [{"$ref": "#"}, INT]}}, "additionalProperties": False},
    "booleans": {"properties": {"a": True, "b": False}, "additionalProperties": False},
}  # fmt: skip
NARROWER: dict[str, Any] = {
    "integers are excluded with all numbers": {"not": INT},
    "dependencies of older drafts": {"dependencies": {"a": ["b"], "b": {"properties": {"a": INT}}}},
    "contains at most": {"contains": STR, "maxContains": 1},
    "not of propertyNames": {"not": {"propertyNames": {"pattern": "a"}}},
    "not of additionalProperties": {"not": {"properties": {"a": {}}, "additionalProperties": INT}},
    "not of contains": {"not": {"contains": STR, "minContains": 2}},
    "not of items": {"not": {"items": INT}},
    "oneOf of a schema of which values are left out": {
        "type": "array",
        "oneOf": [{"oneOf": [{"maxItems": 9}, {"not": {"contains": STR}}]}, {"const": ["a"]}],
    },
    "oneOf of a part of which values are left out": {
        "oneOf": [
            {"properties": {"a": {"oneOf": [{"maxItems": 9}, {"items": INT}]}}, "required": ["a"]},
            {"const": {"a": ["a"]}},
        ]
    },
}


def as_python(schema: Any) -> Any:
    """A rewritten schema, its patterns in Python's notation."""
    if isinstance(schema, dict):
        found = {key: as_python(value) for key, value in schema.items()}
        if isinstance(found.get("pattern"), str):
            found["pattern"] = python_pattern(found["pattern"])
        if isinstance(found.get("patternProperties"), dict):
            found["patternProperties"] = {python_pattern(k): v for k, v in found["patternProperties"].items()}
        return found
    return [as_python(one) for one in schema] if isinstance(schema, list) else schema


def python_pattern(text: str) -> str:
    return re.sub(r"\\x\{([0-9A-F]+)\}", lambda hit: f"\\U{int(hit[1], 16):08x}", text).removesuffix("$") + r"\Z"


def valid_values(schema: Any) -> list[Any]:
    validator = jsonschema.Draft202012Validator(schema)
    return [value for value in VALUES if validator.is_valid(value)]


def rewritten(schema: Any) -> Any:
    return as_python(rewrite(read_json(json.dumps(schema))))


@pytest.mark.parametrize("schema", EXACT.values(), ids=EXACT)
def test_a_rewritten_schema_allows_the_same_values(schema: Any):
    assert valid_values(rewritten(schema)) == valid_values(schema)


@pytest.mark.parametrize("schema", NARROWER.values(), ids=NARROWER)
def test_what_has_no_exact_form_allows_fewer_values(schema: Any):
    found = valid_values(rewritten(schema))
    assert found
    assert all(value in valid_values(schema) for value in found)


@pytest.mark.parametrize("schema", EXACT.values(), ids=EXACT)
def test_a_rewritten_schema_has_only_what_the_library_follows_exactly(schema: Any):
    known = {
        "$ref", "$defs", "anyOf", "allOf", "enum", "const", "type", "properties", "required", "patternProperties",
        "additionalProperties", "minProperties", "maxProperties", "prefixItems", "items", "minItems", "maxItems",
        "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf",
    }  # fmt: skip
    assert keywords(rewritten(schema)) <= known


def keywords(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs"):
            found |= {name for one in value.values() for name in keywords(one)}
        elif key in ("anyOf", "allOf", "prefixItems"):
            found |= {name for one in value for name in keywords(one)}
        elif key in ("items", "additionalProperties"):
            found |= keywords(value)
    return found


NAMES = st.sampled_from(["a", "b", "ab"])
CONSTANTS = st.sampled_from([None, True, 0, 1, 1.5, "a", "ab", [1], {"a": 1}])


def larger(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(schemas, min_size=1, max_size=3)
    few = st.integers(0, 2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "integer", "number", ["string", "null"]]),
            "properties": st.dictionaries(NAMES, schemas, max_size=2),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": schemas,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "^.$"]), schemas, max_size=2),
            "propertyNames": schemas,
            "minProperties": st.integers(0, 1),
            "maxProperties": few,
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
            "dependentSchemas": st.dictionaries(NAMES, schemas, max_size=1),
            "unevaluatedProperties": schemas,
            "unevaluatedItems": schemas,
            "prefixItems": lists,
            "items": schemas,
            "contains": schemas,
            "minContains": few,
            "maxContains": st.integers(1, 2),
            "minItems": few,
            "maxItems": few,
            "minLength": few,
            "maxLength": few,
            "pattern": st.sampled_from(["^a", "b$", "^[ab]*$"]),
            "minimum": few,
            "exclusiveMaximum": few,
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "const": CONSTANTS,
            "enum": st.lists(CONSTANTS, max_size=3),
            "allOf": lists,
            "anyOf": lists,
            "oneOf": lists,
            "not": schemas,
            "if": schemas,
            "then": schemas,
            "else": schemas,
        },
    )


SCHEMAS = st.recursive(st.booleans() | st.just({}), larger, max_leaves=6)


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    return GuidanceBackend(BYTES)


@pytest.mark.machine
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_no_schema_lets_a_wrong_value_through(backend: GuidanceBackend, schema: Any, seed: int):
    try:
        found = rewritten(schema)
    except NotFollowed:
        return
    right = valid_values(schema)
    assert all(value in right for value in valid_values(found))
    try:
        grammar = backend.compile(StructuredOutputsParams(json=json.dumps(schema)))
    except BadRequest:
        return
    answer = draw(grammar, seed)
    assert answer is None or jsonschema.Draft202012Validator(schema).is_valid(json.loads(answer)), answer
