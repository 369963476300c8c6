"""The options of one value by type, with node numbers for the values inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lsv_guidance.patterns.automaton import Language
from lsv_guidance.patterns.nondeterministic import TooComplex
from lsv_guidance.schemas.branch import NUMBERS, STRINGS, Branch, Conjunction, Properties, both
from lsv_guidance.schemas.building import NO_VALUE
from lsv_guidance.schemas.formats import FORMATS
from lsv_guidance.schemas.merged import merge_items, names_of, required_of, terms_of_properties
from lsv_guidance.schemas.names import find_others
from lsv_guidance.schemas.numbers import write_numbers
from lsv_guidance.schemas.refusal import NotFollowed
from lsv_guidance.schemas.strings import language_of_strings, write_strings


@dataclass(frozen=True, slots=True)
class Scalar:
    """Scalar values, as a schema."""

    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Array:
    prefix: tuple[int, ...]
    rest: int
    low: int
    high: int | None
    unique: str
    """The path of the schema that requires unique items; empty for none."""


@dataclass(frozen=True, slots=True)
class Object:
    properties: tuple[tuple[str, int], ...]
    others: tuple[tuple[str | None, int], ...]
    """Unlisted properties by a pattern of their names; None for any name."""
    required: frozenset[str]
    low: int
    high: int | None


Option = Scalar | Array | Object
Number = Callable[[Conjunction], int]
"""Returns the node number of a value that satisfies some terms."""


class OptionMaker:
    """``number`` numbers the inner values, ``expand_all`` expands the terms of property names."""

    def __init__(self, number: Number, expand_all: Callable[[Conjunction], list[Branch]]) -> None:
        self._number, self._expand_all = number, expand_all
        self._objects: dict[tuple[Properties, ...], Object] = {}

    def options(self, branch: Branch, path: str) -> Iterator[Option]:
        """Raises ``NotFollowed``."""
        bound = [name for name in sorted(branch.types) if _is_bound(branch, name)]
        if free := sorted(branch.types.difference(bound)):
            yield Scalar({} if len(free) == 6 else {"type": free[0] if len(free) == 1 else free})
        for name in bound:
            if name == "boolean":
                yield from (Scalar({"const": value}) for value in branch.booleans)
            elif name == "number":
                yield from _scalars(write_numbers(branch.numbers, path))
            elif name == "string":
                yield from _scalars(write_strings(branch.strings, path))
            elif name == "array":
                yield self._array(branch)
            else:
                if branch.properties not in self._objects:
                    self._objects[branch.properties] = self._object(branch, path)
                yield self._objects[branch.properties]

    def _array(self, branch: Branch) -> Array:
        found = merge_items(branch.items)
        prefix = tuple(map(self._number, found.prefix))
        return Array(prefix, self._number(found.rest), found.low, found.high, found.unique)

    def _object(self, branch: Branch, path: str) -> Object:
        layers = branch.properties
        allowed = self._allowed_names(branch, path)
        listed = {
            name: terms if allowed is None or name in allowed else NO_VALUE
            for name, terms in terms_of_properties(layers, names_of(layers)).items()
        }
        properties = tuple((name, self._number(terms)) for name, terms in listed.items())
        others = find_others(layers, listed, allowed, path)
        return Object(
            properties,
            tuple((one.pattern, self._number(one.terms)) for one in others),
            frozenset(required_of(layers)),
            max((layer.low for layer in layers), default=0),
            min((layer.high for layer in layers if layer.high is not None), default=None),
        )

    def _allowed_names(self, branch: Branch, path: str) -> Language | None:
        """The names that ``propertyNames`` allows; None for all."""
        terms: Conjunction = ()
        for layer in branch.properties:
            terms = both(terms, layer.names)
        if not terms:
            return None
        found = Language.of_texts([])
        for one in self._expand_all(terms):
            if "string" not in one.types:
                continue
            if one.strings == STRINGS:
                return None
            if any(FORMATS[name] is None for name in one.strings.formats):
                raise NotFollowed(
                    "propertyNames", path, f"the format {one.strings.formats[0]} is not supported for names"
                )
            try:
                found = found | language_of_strings(one.strings)
            except TooComplex as cause:
                raise NotFollowed("propertyNames", path, f"the names are too complex: {cause}") from None
        return found


def _is_bound(branch: Branch, name: str) -> bool:
    """Whether a branch restricts a type further."""
    if name == "number":
        return branch.numbers != NUMBERS
    if name == "string":
        return branch.strings != STRINGS
    if name == "boolean":
        return len(branch.booleans) < 2
    return bool(branch.items if name == "array" else branch.properties) and name != "null"


def _scalars(schema: dict[str, Any] | None) -> Iterator[Scalar]:
    if schema is not None:
        yield Scalar(schema)
