"""A branch: the bounds of a value for each type, without alternatives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

from lsv_guidance.schemas.document import Place

_T = TypeVar("_T")

TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})


@dataclass(frozen=True, slots=True)
class Term:
    """A schema that a value satisfies, or must not satisfy."""

    place: Place
    scope: tuple[str, ...] = ()
    """The resources that were entered on the way, for dynamic references."""
    positive: bool = True


@dataclass(frozen=True, slots=True)
class Either:
    """Terms of which a value must satisfy at least one."""

    terms: tuple[Term, ...]


Conjunction = tuple[Term | Either, ...]
"""A conjunction: terms without duplicates, in the order of the schema."""


def both(one: Conjunction, two: Conjunction) -> Conjunction:
    return tuple(dict.fromkeys((*one, *two))) if one and two else one or two


@dataclass(frozen=True, slots=True)
class Numbers:
    integer: bool = False
    low: tuple[Fraction, bool] | None = None
    """The lower bound, and whether it is exclusive."""
    high: tuple[Fraction, bool] | None = None
    multiples: frozenset[Fraction] = frozenset()
    values: tuple[Fraction, ...] | None = None
    """The allowed numbers; None for any."""

    def __and__(self, other: Numbers) -> Numbers:
        return Numbers(
            self.integer or other.integer,
            max(filter(None, (self.low, other.low)), default=None),
            min(filter(None, (self.high, other.high)), key=lambda bound: (bound[0], not bound[1]), default=None),
            self.multiples | other.multiples,
            _common(self.values, other.values),
        )

    def has(self, value: Fraction) -> bool:
        """Whether the bounds allow a number, apart from ``values``."""
        return (
            (not self.integer or value.denominator == 1)
            and (self.low is None or value > self.low[0] or (value == self.low[0] and not self.low[1]))
            and (self.high is None or value < self.high[0] or (value == self.high[0] and not self.high[1]))
            and all((value / multiple).denominator == 1 for multiple in self.multiples)
        )


@dataclass(frozen=True, slots=True)
class Strings:
    low: int = 0
    high: int | None = None
    patterns: tuple[tuple[str, bool], ...] = ()
    """Regular expressions, and whether each must or must not match."""
    formats: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()

    def __and__(self, other: Strings) -> Strings:
        return Strings(
            max(self.low, other.low),
            _least(self.high, other.high),
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            tuple(dict.fromkeys((*self.formats, *other.formats))),
            _common(self.values, other.values),
            self.excluded | other.excluded,
        )


@dataclass(frozen=True, slots=True)
class Items:
    """The bounds of arrays from one schema."""

    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = ()
    low: int = 0
    high: int | None = None
    unique: str = ""
    """The path of the schema that requires unique items; empty for none."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The bounds of objects from one schema."""

    named: tuple[tuple[str, Conjunction], ...] = ()
    patterns: tuple[tuple[str, Conjunction], ...] = ()
    rest: Conjunction = ()
    """The schema of properties that are neither listed nor match a pattern."""
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: Conjunction = ()
    """The terms of property names."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Evaluated properties and items, for ``unevaluatedProperties`` and ``unevaluatedItems``."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    all_properties: bool = False
    items: int = 0
    """Number of evaluated items at the beginning."""
    all_items: bool = False
    containing: frozenset[Term] = frozenset()
    """The terms of items that ``contains`` has evaluated."""

    def __or__(self, other: Seen) -> Seen:
        return Seen(
            self.names | other.names,
            self.patterns | other.patterns,
            self.all_properties or other.all_properties,
            max(self.items, other.items),
            self.all_items or other.all_items,
            self.containing | other.containing,
        )


NUMBERS, STRINGS, _NOTHING = Numbers(), Strings(), Seen()
"""The branch without bounds."""


@dataclass(frozen=True, slots=True)
class Branch:
    types: frozenset[str] = TYPES
    booleans: frozenset[bool] = frozenset({False, True})
    numbers: Numbers = NUMBERS
    strings: Strings = STRINGS
    items: tuple[Items, ...] = ()
    properties: tuple[Properties, ...] = ()
    seen: Seen = _NOTHING

    def __and__(self, other: Branch) -> Branch:
        types = self.types & other.types
        booleans = self.booleans & other.booleans
        return Branch(
            types if booleans else types - {"boolean"},
            booleans,
            _joined(self.numbers, other.numbers, NUMBERS) if "number" in types else NUMBERS,
            _joined(self.strings, other.strings, STRINGS) if "string" in types else STRINGS,
            _layers(self.items, other.items) if "array" in types else (),
            _layers(self.properties, other.properties) if "object" in types else (),
            self.seen | other.seen if self.seen != other.seen else self.seen,
        )

    def unseen(self) -> Branch:
        return self if self.seen is _NOTHING else replace(self, seen=_NOTHING)


def _joined(one: Any, two: Any, nothing: Any) -> Any:
    return two if one is nothing else one if two is nothing else one & two


def _layers(one: tuple[_T, ...], two: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(one + two)) if one and two else one or two


ANYTHING = Branch()


def only(name: str, **bounds: object) -> Branch:
    """Values of one type."""
    return replace(ANYTHING, types=frozenset({name}), **bounds)  # type: ignore[arg-type]


def only_types(names: frozenset[str]) -> list[Branch]:
    """Values of some types, as alternatives of one value."""
    return [ANYTHING if names == TYPES else replace(ANYTHING, types=names)]


def others(*names: str) -> Branch:
    """Values of all other types."""
    return replace(ANYTHING, types=TYPES.difference(names))


def _least(one: int | None, two: int | None) -> int | None:
    return min((bound for bound in (one, two) if bound is not None), default=None)


def _common(one: tuple[_T, ...] | None, two: tuple[_T, ...] | None) -> tuple[_T, ...] | None:
    if one is None or two is None:
        return two if one is None else one
    known = set(two)
    return tuple(value for value in one if value in known)


def distinct(branches: Iterable[Branch]) -> list[Branch]:
    """The branches with at least one type, without duplicates."""
    found = [branch for branch in branches if branch.types]
    return found if len(found) < 2 else list(dict.fromkeys(found))
