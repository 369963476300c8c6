"""Assertion keywords of texts, numbers and other values, and the places of the schemas of items."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from lsv_guidance.patterns.pattern import pattern_of
from lsv_guidance.patterns.syntax import UnreadablePattern
from lsv_guidance.schemas.branch import NUMBERS, STRINGS, TYPES, Numbers, Strings
from lsv_guidance.schemas.document import Document, Place
from lsv_guidance.schemas.formats import FORMATS, LONGEST, SAME_AS
from lsv_guidance.schemas.refusal import NotFollowed, malformed
from lsv_guidance.schemas.values import read_count, read_number

Steps = tuple[str | int, ...]


_NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_INTEGERS = Numbers(integer=True)
_STRING_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})


def read_types(place: Place) -> tuple[frozenset[str], bool]:
    """The types, and whether numbers are restricted to integers."""
    if "type" not in place.schema:
        return TYPES, False
    given = place.schema["type"]
    names = given if isinstance(given, list) else [given]
    for name in names:
        if not isinstance(name, str) or name not in {*TYPES, "integer"}:
            raise malformed("type", place.path, f"one or several of {', '.join(sorted({*TYPES, 'integer'}))}", given)
    integer = "integer" in names and "number" not in names
    return frozenset("number" if name == "integer" else name for name in names), integer


def read_bounds(place: Place, *, integer: bool = False) -> Numbers:
    if _NUMBER_KEYWORDS.isdisjoint(place.schema):
        return _INTEGERS if integer else NUMBERS
    return Numbers(
        integer,
        max(_bounds(place, "minimum", "exclusiveMinimum"), default=None),
        min(_bounds(place, "maximum", "exclusiveMaximum"), key=lambda bound: (bound[0], not bound[1]), default=None),
        frozenset(_multiples(place)),
    )


def _bounds(place: Place, keyword: str, exclusive: str) -> Iterable[tuple[Fraction, bool]]:
    older = place.schema.get(exclusive)
    if keyword in place.schema:
        yield read_number(place, keyword), older is True
    if exclusive in place.schema and not isinstance(older, bool):
        yield read_number(place, exclusive), True


def _multiples(place: Place) -> Iterable[Fraction]:
    if "multipleOf" in place.schema:
        found = read_number(place, "multipleOf")
        if found <= 0:
            raise malformed("multipleOf", place.path, "a number above 0", place.schema["multipleOf"])
        yield found


def read_strings(place: Place) -> Strings:
    if _STRING_KEYWORDS.isdisjoint(place.schema):
        return STRINGS
    name = read_format(place)
    high = read_count(place, "maxLength", None)
    if name in LONGEST:
        high = min(LONGEST[name], LONGEST[name] if high is None else high)
    return Strings(
        read_count(place, "minLength", 0) or 0,
        high,
        tuple((text, True) for text in read_patterns(place)),
        () if name is None else (name,),
    )


def read_patterns(place: Place) -> Iterable[str]:
    if "pattern" in place.schema:
        text = place.schema["pattern"]
        if not isinstance(text, str):
            raise malformed("pattern", place.path, "a text", text)
        check_pattern(place, "pattern", text)
        yield text


def check_pattern(place: Place, keyword: str, text: str) -> None:
    try:
        pattern_of(text)
    except UnreadablePattern as cause:
        way = "rewrite it, or leave it out and check the answer"
        raise NotFollowed(keyword, place.path, f"{text[:100]}: {cause}: {way}") from None


def read_format(place: Place) -> str | None:
    """The format that texts must follow; None if it is only an annotation."""
    name = place.schema.get("format")
    if name is not None and not isinstance(name, str):
        raise malformed("format", place.path, "a string", name)
    name = SAME_AS.get(str(name), name)
    return name if name in FORMATS else None


def read_flag(place: Place, keyword: str) -> bool:
    found = place.schema.get(keyword, False)
    if not isinstance(found, bool):
        raise malformed(keyword, place.path, "true or false", found)
    return found


def item_steps(document: Document, place: Place) -> tuple[list[Steps], Steps | None]:
    """The steps to the schemas of the first items and of all other items. Older drafts have other names for them."""
    schema = place.schema
    if isinstance(schema.get("items"), list):
        prefix: list[Steps] = [("items", number) for number in range(len(schema["items"]))]
        return prefix, ("additionalItems",) if "additionalItems" in schema else None
    rest: Steps | None = ("items",) if "items" in schema else None
    if "prefixItems" not in schema or document.draft(place) < 2020:
        return [], rest
    if not isinstance(schema["prefixItems"], list) or not schema["prefixItems"]:
        raise malformed("prefixItems", place.path, "a non-empty list", schema["prefixItems"])
    return [("prefixItems", number) for number in range(len(schema["prefixItems"]))], rest
