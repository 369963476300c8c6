"""Which JSON schemas xgrammar follows exactly: what it would pass over, with a warning or without, is refused by name.

Read from its ``cpp/json_schema_converter.cc`` (0.2): of ``$ref``, ``const``, ``enum``, ``anyOf``, ``oneOf``, ``allOf``
and ``type`` the first one that is there counts, and what stands beside it is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_MEMBERS = 2000
"""Members of an enum, and properties of an object: compiling takes time that grows with their square."""
MAX_INTEGER = (1 << 63) - 1

Schema = dict[str, Any] | bool

_HEADS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": _NUMBER,
    "number": _NUMBER,
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_ASSERTIONS = frozenset().union(
    *_OF_TYPE.values(),
    _HEADS,
    (
        "type", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef",
        "$recursiveRef", "multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "additionalItems",
        "unevaluatedItems", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties",
    ),
)  # fmt: skip
"""The keywords that say what a value must be; all others are annotations."""
_FORMATS = frozenset({"date", "time", "date-time", "ipv4", "uuid"})
"""Those whose texts need no escapes."""
_CHARACTER = r'[^"\\\x00-\x1f\x7f]'
_UNKEPT = re.compile(r"""\(\?[=!<]|[\x00-\x1f"]|\\[nrtfv0cxu"\\]""")
"""What patterns must not have: look-around, which is passed over, and what only stands in JSON as an escape."""


class NotFollowed(ValueError):
    """Why a schema is refused."""


def exact(text: str) -> str:
    """A schema as xgrammar follows it exactly. Raises ``NotFollowed`` that names the keyword."""
    try:
        root = json.loads(text)
    except ValueError as cause:
        raise NotFollowed(f"it is not JSON: {cause}") from None
    return json.dumps(_Rewriter(root).write())


class _Rewriter:
    """Rewrites one schema. What ``$ref`` names is rewritten, too, each place once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema] = {}

    def write(self) -> Schema:
        found = self._schema(self._root)
        return {**found, "$defs": self._definitions} if isinstance(found, dict) and self._definitions else found

    def _schema(self, schema: Any) -> Schema:
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise NotFollowed(f"a schema is an object or true, got {json.dumps(schema)[:64]}")
        if not isinstance(schema.get("$id", ""), str) or ("$id" in schema and schema is not self._root):
            raise NotFollowed("$id within a schema is not supported")
        given = {name: value for name, value in schema.items() if name in _ASSERTIONS}
        head = next((name for name in _HEADS if name in given), None)
        if head is None:
            return self._typed(given)
        value = given.pop(head)
        types = given.pop("type", None) if head in ("const", "enum") else None
        if given:
            raise NotFollowed(f"{_named(given)} beside {head} is not supported")
        return {head: self._head(head, value, types)} if head != "$ref" else {"$ref": self._reference(value)}

    def _head(self, head: str, value: Any, types: Any) -> Any:
        if head in ("const", "enum"):
            values = [value] if head == "const" else value
            if not isinstance(values, list) or not values:
                raise NotFollowed("enum must be a list that is not empty")
            if len(values) > MAX_MEMBERS:
                raise NotFollowed(f"enum has at most {MAX_MEMBERS} members, this one {len(values)}")
            if types is not None and not all(_is_a(one, types) for one in values):
                raise NotFollowed(f"{head} beside a type that its values do not have is not supported")
            return value
        if not isinstance(value, list) or not value:
            raise NotFollowed(f"{head} must be a list that is not empty")
        if head == "allOf" and len(value) > 1:
            raise NotFollowed("allOf of more than one schema is not supported")
        if head == "oneOf" and not _disjoint(value):
            raise NotFollowed("oneOf is followed where its schemas have different types, or different constants")
        return [self._schema(one) for one in value]

    def _typed(self, given: dict[str, Any]) -> Schema:
        types = given.pop("type", None)
        if types is None:
            if given:
                raise NotFollowed(f"{_named(given)} without type is not supported")
            return {}
        names = types if isinstance(types, list) else [types]
        if not names or not all(isinstance(name, str) and name in _OF_TYPE for name in names):
            raise NotFollowed(f"type must be one or several of {', '.join(_OF_TYPE)}, got {json.dumps(types)[:64]}")
        known = frozenset().union(*(_OF_TYPE[name] for name in names))
        for name in given:
            if name not in known:
                raise NotFollowed(f"{name} with type {json.dumps(types)} is not supported")
        options = [self._one_type(name, {k: v for k, v in given.items() if k in _OF_TYPE[name]}) for name in names]
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _one_type(self, name: str, given: dict[str, Any]) -> Schema:
        if name == "string":
            return _string(given)
        if name in ("integer", "number"):
            return _numeric(name, given)
        if name == "array":
            return self._array(given)
        return self._object(given) if name == "object" else {"type": name}

    def _array(self, given: dict[str, Any]) -> Schema:
        _check_counts(given, "minItems", "maxItems")
        found = {"type": "array", **given}
        if "prefixItems" in given:
            if not isinstance(given["prefixItems"], list) or not given["prefixItems"]:
                raise NotFollowed("prefixItems must be a list that is not empty")
            found["prefixItems"] = [self._schema(one) for one in given["prefixItems"]]
        if given.get("items") is False:
            if "prefixItems" not in given:
                raise NotFollowed("items: false without prefixItems is not supported")
        else:
            found["items"] = self._schema(given.get("items", True))
        return found

    def _object(self, given: dict[str, Any]) -> Schema:
        properties, required = given.get("properties", {}), given.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise NotFollowed("properties must be an object, and required a list")
        if len(properties) > MAX_MEMBERS // 4:
            raise NotFollowed(f"an object has at most {MAX_MEMBERS // 4} properties, this one {len(properties)}")
        if missing := [name for name in required if name not in properties]:
            raise NotFollowed(f"required names {json.dumps(missing[0])[:64]}, which is not among properties")
        more = given.get("additionalProperties", True)
        return {
            "type": "object",
            "properties": {name: self._schema(one) for name, one in properties.items()},
            "required": required,
            "additionalProperties": False if more is False else self._schema(more),
        }

    def _reference(self, pointer: Any) -> str:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise NotFollowed(f"$ref leads to places of the same schema (#/…), this one to {json.dumps(pointer)[:64]}")
        if pointer not in self._names:
            name = self._names[pointer] = f"r{len(self._names)}"
            target = self._resolve(pointer)
            self._definitions[name] = self._schema(target)
        return f"#/$defs/{self._names[pointer]}"

    def _resolve(self, pointer: str) -> Any:
        """What a pointer leads to, past further references."""
        seen: set[str] = set()
        while True:
            if pointer in seen:
                raise NotFollowed(f"$ref {json.dumps(pointer)[:64]} leads to itself")
            seen.add(pointer)
            found = self._at(pointer)
            if not isinstance(found, dict) or not isinstance(found.get("$ref"), str) or self._has_more(found):
                return found
            pointer = found["$ref"]

    def _has_more(self, schema: dict[str, Any]) -> bool:
        return any(name in _ASSERTIONS for name in schema if name != "$ref")

    def _at(self, pointer: str) -> Any:
        found: Any = self._root
        for part in _path(pointer):
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                raise NotFollowed(f"$ref {json.dumps(pointer)[:64]} leads nowhere")
        return found


def _string(given: dict[str, Any]) -> Schema:
    """Lengths become a pattern: xgrammar's own form of them lets control characters through, which are no JSON."""
    kinds = [name for name in ("format", "pattern") if name in given]
    lengths = [name for name in ("minLength", "maxLength") if name in given]
    if len(kinds) + bool(lengths) > 1:
        raise NotFollowed(f"{' beside '.join([*kinds, *lengths])} is not supported")
    if "format" in given and given["format"] not in _FORMATS:
        raise NotFollowed(f"format {json.dumps(given['format'])[:64]} is not supported")
    pattern = given.get("pattern")
    if pattern is not None and (not isinstance(pattern, str) or _UNKEPT.search(pattern)):
        raise NotFollowed("pattern with look-around, or with characters that JSON escapes, is not supported")
    if not lengths:
        return {"type": "string", **given}
    _check_counts(given, "minLength", "maxLength")
    return {"type": "string", "pattern": f"{_CHARACTER}{{{given.get('minLength', 0)},{given.get('maxLength', '')}}}"}


def _numeric(name: str, given: dict[str, Any]) -> Schema:
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise NotFollowed(f"{key} must be a number")
        if name == "integer" and value != int(value):
            raise NotFollowed(f"{key} that is no integer, with type integer, is not supported")
        if abs(value) >= MAX_INTEGER:
            raise NotFollowed(f"{key} of more than 63 bits is not supported")
    return {"type": name, **{key: int(value) if name == "integer" else value for key, value in given.items()}}


def _check_counts(given: dict[str, Any], low: str, high: str) -> None:
    for name in (low, high):
        value = given.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 20:
            raise NotFollowed(f"{name} must be an integer of at most {1 << 20}")
    if given.get(low, 0) > given.get(high, 1 << 20):
        raise NotFollowed(f"{low} is greater than {high}")


def _disjoint(schemas: list[Any]) -> bool:
    """Whether it is plain that no two of these hold at once."""
    if not all(isinstance(one, dict) for one in schemas):
        return False
    if all("const" in one or "enum" in one for one in schemas):
        values = [json.dumps(value, sort_keys=True) for one in schemas for value in one.get("enum", [one.get("const")])]
        return len({*values}) == len(values)
    types = [{"integer": "number"}.get(one.get("type"), one.get("type")) for one in schemas if _is_name(one)]
    return len(types) == len(schemas) == len({*types})


def _is_name(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("type"), str)


def _is_a(value: Any, types: Any) -> bool:
    names = types if isinstance(types, list) else [types]
    found = _type_of(value)
    return found in names or (found == "integer" and "number" in names)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)]


def _path(pointer: str) -> Iterator[str]:
    if pointer == "#":
        return
    if not pointer.startswith("#/") or "%" in pointer:
        raise NotFollowed(f"$ref {json.dumps(pointer)[:64]} is not supported: it must be # or begin with #/")
    for part in pointer[2:].split("/"):
        yield part.replace("~1", "/").replace("~0", "~")


def _named(given: Mapping[str, Any]) -> str:
    return " and ".join(list(given)[:4])
