"""One schema document: its places, their names, and the targets of references."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from lsv_guidance.schemas.refusal import NotFollowed, malformed

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    "items", "additionalItems", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
_DRAFT = re.compile(r"https?://json-schema\.org/draft[-/](\d{4}|0\d)")
NEWEST = 2020


@dataclass(frozen=True, slots=True)
class Place:
    """A schema within the document."""

    path: str
    """Its JSON pointer from the root, which identifies it."""
    schema: Any = field(compare=False, repr=False)
    base: str = field(compare=False, repr=False)
    """The address of the resource that it belongs to."""


class Document:
    """Raises ``NotFollowed`` for identifiers that are not strings."""

    def __init__(self, root: Any) -> None:
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic: dict[tuple[str, str], Place] = {}
        self._drafts: dict[str, int] = {}
        self.keywords: set[str] = set()
        """All keywords anywhere in the document."""
        self.root = self._enter(Place("#", root, ""))
        self._resources.setdefault("", self.root)
        self._drafts.setdefault(self.root.base, NEWEST)
        self._register(self.root)

    @property
    def has_dynamic_anchors(self) -> bool:
        return bool(self._dynamic)

    def draft(self, place: Place) -> int:
        """4, 6, 7, 2019 or 2020."""
        return self._drafts[place.base]

    def child(self, place: Place, *steps: str | int) -> Place:
        """The places inside a place."""
        schema = place.schema
        for step in steps:
            schema = schema[step]
        pointer = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
        return self._enter(Place(place.path + pointer, schema, place.base))

    def resolve(self, place: Place, keyword: str, reference: Any) -> Place:
        """The target of a reference. Raises ``NotFollowed`` if it is outside the document or does not exist."""
        if not isinstance(reference, str):
            raise malformed(keyword, place.path, "a string", reference)
        address, fragment = urldefrag(_join(place.base, reference))
        resource = self._resources.get(address)
        if resource is None:
            raise NotFollowed(
                keyword, place.path, f"{reference[:100]} points outside the schema: put its target under $defs"
            )
        if fragment and not fragment.startswith("/"):
            anchor = self._anchors.get((resource.base, unquote(fragment)))
            if anchor is None:
                raise NotFollowed(keyword, place.path, f"{reference[:100]} is not an $anchor of the schema")
            return anchor
        found = self._walk(resource, fragment, unquote) or self._walk(resource, fragment, str)
        if found is None:
            raise NotFollowed(keyword, place.path, f"{reference[:100]} points to nothing in the schema")
        return found

    def resolve_dynamic(self, place: Place, reference: Any, scope: tuple[str, ...]) -> Place:
        """The target of a dynamic reference. ``scope`` has the entered resources, outermost first."""
        found = self.resolve(place, "$dynamicRef", reference)
        name = unquote(urldefrag(reference)[1])
        if (found.base, name) not in self._dynamic:
            return found
        return next((self._dynamic[base, name] for base in scope if (base, name) in self._dynamic), found)

    def _walk(self, place: Place, pointer: str, decode: Any) -> Place | None:
        for part in pointer.split("/")[1:] if pointer not in ("", "/") else ():
            step: str | int = decode(part).replace("~1", "/").replace("~0", "~")
            if isinstance(place.schema, list):
                if not (str(step).isdecimal() and int(step) < len(place.schema)):
                    return None
                step = int(step)
            elif not isinstance(place.schema, dict) or step not in place.schema:
                return None
            place = self.child(place, step)
        return place

    def _enter(self, place: Place) -> Place:
        """The place, with the address of its resource if one begins there."""
        if not isinstance(place.schema, dict):
            return place
        name = place.schema.get("$id", place.schema.get("id") if place.path == "#" else None)
        if not isinstance(name, str) or name.startswith("#"):
            return place
        return Place(place.path, place.schema, urldefrag(_join(place.base, name))[0])

    def _register(self, root: Place) -> None:
        waiting = [root]
        while waiting:
            place = waiting.pop()
            if not isinstance(place.schema, dict):
                continue
            self.keywords.update(place.schema)
            self._register_one(place)
            waiting += self._children(place)

    def _register_one(self, place: Place) -> None:
        schema = place.schema
        for keyword in ("$id", "$anchor", "$dynamicAnchor"):
            if not isinstance(schema.get(keyword, ""), str):
                raise malformed(keyword, place.path, "a text", schema[keyword])
        if isinstance(schema.get("$id"), str) or place.path == "#":
            self._resources.setdefault(place.base, place)
            found = _DRAFT.match(str(schema.get("$schema", "")))
            self._drafts[place.base] = int(found[1]) if found else self._drafts[self.root.base]
        for keyword in ("$anchor", "$dynamicAnchor"):
            if keyword in schema:
                self._anchors[place.base, schema[keyword]] = place
        if str(schema.get("$id", "")).startswith("#"):
            self._anchors[place.base, schema["$id"][1:]] = place
        if "$dynamicAnchor" in schema:
            self._dynamic[place.base, schema["$dynamicAnchor"]] = place

    def _children(self, place: Place) -> Iterator[Place]:
        for keyword in _SINGLE:
            if isinstance(place.schema.get(keyword), dict):
                yield self.child(place, keyword)
        for keyword in _LISTS:
            if isinstance(place.schema.get(keyword), list):
                yield from (self.child(place, keyword, number) for number in range(len(place.schema[keyword])))
        for keyword in _MAPS:
            if isinstance(place.schema.get(keyword), dict):
                yield from (self.child(place, keyword, name) for name in place.schema[keyword])


def _join(base: str, reference: str) -> str:
    return base + reference if reference.startswith("#") or not reference else urljoin(base, reference)
