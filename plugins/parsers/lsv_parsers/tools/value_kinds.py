"""Decides by the JSON schema of a function's arguments how to read a value without quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import unquote

Kind = Literal["text", "optional text", "any"]

_EVERY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_MAX_DEPTH = 32
"""Limit on nested references and choices."""
_MAX_CHOICES = 64


def kind_of(schema: Mapping[str, Any], key: str) -> Kind:
    """How to read the value of ``key``: as a text, as a text or null, or as JSON if it is valid JSON."""
    properties = _find_properties(schema, schema, 0)
    types = _types(properties.get(key, True), schema, 0)
    if types == {"string"}:
        return "text"
    return "optional text" if types == {"string", "null"} else "any"


def _find_properties(part: Any, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """The properties that a schema lists, also by reference and in ``allOf``."""
    if not isinstance(part, Mapping) or depth > _MAX_DEPTH:
        return {}
    found: dict[str, Any] = {}
    for other in (resolve(part.get("$ref"), root), *_list(part, "allOf")):
        found |= _find_properties(other, root, depth + 1)
    own = part.get("properties")
    return found | own if isinstance(own, dict) else found


def _types(part: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """The JSON types that a schema allows; all of them if it does not say."""
    if not isinstance(part, Mapping) or depth > _MAX_DEPTH:
        return _EVERY
    found = _named(part.get("type"))
    if isinstance(part.get("enum"), list):
        found &= frozenset(map(_type_of, part["enum"]))
    if "const" in part:
        found &= {_type_of(part["const"])}
    if "$ref" in part:
        found &= _types(resolve(part["$ref"], root), root, depth + 1)
    for every in _list(part, "allOf"):
        found &= _types(every, root, depth + 1)
    for key in ("anyOf", "oneOf"):
        choices = _list(part, key)
        if choices:
            found &= frozenset().union(*(_types(choice, root, depth + 1) for choice in choices))
    if part.get("nullable") is True:
        found |= {"null"}
    return found


def _named(types: Any) -> frozenset[str]:
    """The types of the keyword ``type``: a name or a list of names."""
    named = {name for name in (types if isinstance(types, list) else [types]) if isinstance(name, str)}
    return frozenset(named) & _EVERY or _EVERY


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"


def _list(part: Mapping[str, Any], key: str) -> list[Any]:
    found = part.get(key)
    return found[:_MAX_CHOICES] if isinstance(found, list) else []


def resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """The target of a reference inside the document; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place
