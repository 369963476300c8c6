"""Constants as branches, and reading the values of keywords."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from lsv_guidance.schemas.branch import Branch, Items, Numbers, Properties, Strings, Term, only
from lsv_guidance.schemas.building import NO_VALUE
from lsv_guidance.schemas.document import Place
from lsv_guidance.schemas.json_text import is_number, type_of
from lsv_guidance.schemas.refusal import malformed


def branches_of_values(place: Place, values: Iterable[Any]) -> list[Branch]:
    """The branches of these values: one branch for all texts, one for all numbers, and so on."""
    groups: dict[str, list[Any]] = {}
    for value in values:
        groups.setdefault(type_of(value), []).append(value)
    found = list[Branch]()
    for name, members in groups.items():
        if name == "null":
            found.append(only("null"))
        elif name == "boolean":
            found.append(only("boolean", booleans=frozenset(members)))
        elif name == "number":
            numbers = tuple(dict.fromkeys(map(fraction, members)))
            found.append(only("number", numbers=Numbers(values=numbers)))
        elif name == "string":
            found.append(only("string", strings=Strings(values=tuple(dict.fromkeys(members)))))
        else:
            found += [_branch_of_composite(place, value) for value in members]
    return found


def _branch_of_composite(place: Place, value: Any) -> Branch:
    if isinstance(value, list):
        prefix = tuple((constant(place, member),) for member in value)
        return only("array", items=(Items(prefix, NO_VALUE, len(value), len(value)),))
    named = tuple((name, (constant(place, member),)) for name, member in value.items())
    return only("object", properties=(Properties(named, rest=NO_VALUE, required=tuple(value)),))


def constant(place: Place, value: Any, *, positive: bool = True) -> Term:
    """The term that a value is this constant. Equal constants are equal terms."""
    return Term(Place(f"#const {_key(value)}", {"const": value}, place.base), positive=positive)


def _key(value: Any) -> str:
    """A key that is the same for equal values."""
    if is_number(value):
        return str(fraction(value))
    if isinstance(value, list):
        return f"[{','.join(map(_key, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{_key(member)}" for name, member in value.items()) + "}"
    return repr(value)


def fraction(value: int | float | Decimal) -> Fraction:
    return Fraction(repr(value) if isinstance(value, float) else value)


def read_number(place: Place, keyword: str) -> Fraction:
    value = place.schema[keyword]
    if not is_number(value):
        raise malformed(keyword, place.path, "a number", value)
    return fraction(value)


def read_count(place: Place, keyword: str, default: int | None) -> int | None:
    if keyword not in place.schema:
        return default
    value = place.schema[keyword]
    if not is_number(value) or value < 0 or value != int(value):
        raise malformed(keyword, place.path, "an integer of at least 0", value)
    return int(value)


def read_texts(place: Place, keyword: str) -> list[str]:
    value = place.schema.get(keyword, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise malformed(keyword, place.path, "a list of strings", value)
    return value


def read_list(place: Place, keyword: str, *, empty: bool = False) -> list[Any]:
    value = place.schema[keyword]
    if not isinstance(value, list) or not (value or empty):
        raise malformed(keyword, place.path, "a list" if empty else "a non-empty list", value)
    return value


def read_map(place: Place, keyword: str) -> dict[str, Any]:
    value = place.schema.get(keyword, {})
    if not isinstance(value, dict):
        raise malformed(keyword, place.path, "an object", value)
    return value
