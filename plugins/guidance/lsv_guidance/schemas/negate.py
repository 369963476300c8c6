"""The branches of values that do not satisfy a schema.

Some of these branches can't be expressed and are left out, so fewer values are allowed, never more. Examples are an
object with some unlisted property of a wrong value, and a number that is not an integer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lsv_guidance.schemas import assertions
from lsv_guidance.schemas.branch import (
    ANYTHING,
    TYPES,
    Branch,
    Items,
    Numbers,
    Properties,
    Strings,
    Term,
    only,
    others,
)
from lsv_guidance.schemas.building import NO_VALUE, count_items
from lsv_guidance.schemas.expansion import Expansion
from lsv_guidance.schemas.json_text import type_of
from lsv_guidance.schemas.values import constant, fraction, read_count, read_list, read_map, read_texts

_POSITIONS = 4
"""Limit on items after the listed ones that may be the wrong one."""


class Negation:
    """Negates schemas for an expander."""

    def __init__(self, expander: Expansion) -> None:
        self._expander = expander
        self.left_out: list[tuple[str, str]] = []
        """Keywords whose negation was left out, with the paths of their schemas."""

    def expand(self, term: Term) -> Iterator[Branch]:
        schema = term.place.schema
        if "$ref" in schema and self._expander.document.draft(term.place) <= 7:
            self._expander.lose()
            yield from self._expander.expand(self._expander.target(term, "$ref", positive=False))
            return
        for keyword in schema:
            yield from self._negate(term, keyword)

    def _negate(self, term: Term, keyword: str) -> Iterator[Branch]:
        place, expand = term.place, self._expander.expand
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            yield from expand(self._expander.target(term, keyword, positive=False))
        elif keyword == "allOf":
            for number in range(len(read_list(place, keyword))):
                yield from expand(self._expander.child(term, keyword, number, positive=False))
        elif keyword == "anyOf":
            yield from self._none_of(term, keyword)
        elif keyword == "oneOf":
            yield from self._none_of(term, keyword)
            yield from self._two_of(term)
        elif keyword == "not":
            yield from expand(self._expander.child(term, keyword))
        elif keyword == "if":
            yield from self._conditional(term)
        elif keyword in ("const", "enum"):
            yield from self._constants(
                term, [place.schema[keyword]] if keyword == "const" else read_list(place, keyword, empty=True)
            )
        elif keyword == "type":
            yield from self._types(term)
        elif keyword in ("minLength", "maxLength", "pattern", "format"):
            yield from self._strings(term, keyword)
        elif keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            yield from self._numbers(term, keyword)
        elif keyword in ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"):
            yield from self._arrays(term, keyword)
        else:
            yield from self._objects(term, keyword)

    def _leave_out(self, term: Term, keyword: str) -> None:
        self.left_out.append((keyword, term.place.path))
        self._expander.lose()

    def _none_of(self, term: Term, keyword: str) -> list[Branch]:
        found = [ANYTHING]
        for number in range(len(read_list(term.place, keyword))):
            without = self._expander.expand(self._expander.child(term, keyword, number, positive=False))
            found = self._expander.join(found, without, term.place.path)
        return found

    def _two_of(self, term: Term) -> Iterator[Branch]:
        options = [
            self._expander.expand(self._expander.child(term, "oneOf", n))
            for n in range(len(term.place.schema["oneOf"]))
        ]
        for number, one in enumerate(options):
            for other in options[number + 1 :]:
                yield from self._expander.join(one, other, term.place.path)

    def _conditional(self, term: Term) -> Iterator[Branch]:
        for keyword, holds in (("then", True), ("else", False)):
            if keyword in term.place.schema:
                condition = self._expander.expand(self._expander.child(term, "if", positive=holds))
                failing = self._expander.expand(self._expander.child(term, keyword, positive=False))
                yield from self._expander.join(condition, failing, term.place.path)

    def _types(self, term: Term) -> Iterator[Branch]:
        types, integer = assertions.read_types(term.place)
        if integer:
            self._leave_out(term, "type")
        if types != TYPES:
            yield others(*types)

    def _constants(self, term: Term, values: list[Any]) -> Iterator[Branch]:
        groups: dict[str, list[Any]] = {}
        for value in values:
            groups.setdefault(type_of(value), []).append(value)
        yield others(*groups)
        if "boolean" in groups:
            yield only("boolean", booleans=frozenset({False, True}).difference(groups["boolean"]))
        if "string" in groups:
            yield only("string", strings=Strings(excluded=frozenset(groups["string"])))
        if "number" in groups:
            bounds = [None, *((number, True) for number in sorted(set(map(fraction, groups["number"])))), None]
            for low, high in pairwise(bounds):
                yield only("number", numbers=Numbers(low=low, high=high))
        for name in ("array", "object"):
            found = [only(name)]
            for value in groups.get(name, ()):
                unlike = self._unlike_list(term, value) if name == "array" else self._unlike_object(term, value)
                found = self._expander.join(found, list(unlike), term.place.path)
            yield from found if name in groups else ()

    def _unlike_list(self, term: Term, value: list[Any]) -> Iterator[Branch]:
        if value:
            yield only("array", items=(Items(high=len(value) - 1),))
        yield only("array", items=(Items(low=len(value) + 1),))
        for number, member in enumerate(value):
            prefix = ((),) * number + ((self._constant(term, member),),)
            yield only("array", items=(Items(prefix, low=number + 1),))

    def _unlike_object(self, term: Term, value: dict[str, Any]) -> Iterator[Branch]:
        for name, member in value.items():
            yield only("object", properties=(Properties(((name, NO_VALUE),)),))
            yield only("object", properties=(Properties(((name, (self._constant(term, member),)),), required=(name,)),))
        yield only("object", properties=(Properties(required=tuple(value), low=len(value) + 1),))

    def _constant(self, term: Term, value: Any) -> Term:
        return constant(term.place, value, positive=False)

    def _strings(self, term: Term, keyword: str) -> Iterator[Branch]:
        place = term.place
        if keyword == "pattern":
            for text in assertions.read_patterns(place):
                yield only("string", strings=Strings(patterns=((text, False),)))
        elif keyword == "format":
            if assertions.read_format(place) is not None:
                self._leave_out(term, keyword)
        elif count := read_count(place, "minLength", None) if keyword == "minLength" else None:
            yield only("string", strings=Strings(high=count - 1))
        elif keyword == "maxLength":
            yield only("string", strings=Strings(low=(read_count(place, keyword, 0) or 0) + 1))

    def _numbers(self, term: Term, keyword: str) -> Iterator[Branch]:
        bounds = assertions.read_bounds(replace(term.place, schema=self._alone(term, keyword)))
        if bounds.multiples:
            self._leave_out(term, keyword)
        if bounds.low is not None:
            yield only("number", numbers=Numbers(high=(bounds.low[0], not bounds.low[1])))
        if bounds.high is not None:
            yield only("number", numbers=Numbers(low=(bounds.high[0], not bounds.high[1])))

    def _alone(self, term: Term, keyword: str) -> dict[str, Any]:
        """The keyword alone, with the accompanying flag of older drafts."""
        schema = term.place.schema
        flag = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}.get(keyword, "")
        return {keyword: schema[keyword]} | ({flag: True} if schema.get(flag) is True else {})

    def _arrays(self, term: Term, keyword: str) -> Iterator[Branch]:
        place, child = term.place, self._expander.child
        if keyword == "minItems":
            if count := read_count(place, keyword, 0):
                yield only("array", items=(Items(high=count - 1),))
        elif keyword == "maxItems":
            yield only("array", items=(Items(low=(read_count(place, keyword, 0) or 0) + 1),))
        elif keyword == "contains":
            yield from self._uncounted(term)
        elif keyword in ("uniqueItems", "unevaluatedItems"):
            if place.schema[keyword] not in (False, True) or place.schema[keyword] is (keyword == "uniqueItems"):
                self._leave_out(term, keyword)
        elif keyword in ("items", "prefixItems"):
            prefix, rest = assertions.item_steps(self._expander.document, place)
            if keyword == "items" and not isinstance(place.schema["items"], list):
                steps = [(len(prefix) + number, rest) for number in range(_POSITIONS)] if rest else []
            else:
                steps = list(enumerate(prefix))
                if rest == ("additionalItems",):
                    steps += [(len(prefix) + number, rest) for number in range(_POSITIONS)]
            if len(steps) > len(prefix) or keyword == "items":
                self._expander.lose()
            for number, step in steps:
                wrong = ((),) * number + ((child(term, *step, positive=False),),)
                yield only("array", items=(Items(wrong, low=number + 1),))

    def _uncounted(self, term: Term) -> Iterator[Branch]:
        self._expander.lose()
        low, high = read_count(term.place, "minContains", 1), read_count(term.place, "maxContains", None)
        wanted = self._expander.child(term, "contains")
        unwanted = self._expander.child(term, "contains", positive=False)
        if low:
            yield from count_items(wanted, unwanted, 0, low - 1)
        if high is not None:
            yield from count_items(wanted, unwanted, high + 1, None)

    def _objects(self, term: Term, keyword: str) -> Iterator[Branch]:
        place, child = term.place, self._expander.child
        if keyword == "required":
            for name in read_texts(place, keyword):
                yield only("object", properties=(Properties(((name, NO_VALUE),)),))
        elif keyword == "properties":
            for name in read_map(place, keyword):
                wrong = ((name, (child(term, keyword, name, positive=False),)),)
                yield only("object", properties=(Properties(wrong, required=(name,)),))
        elif keyword == "minProperties":
            if count := read_count(place, keyword, 0):
                yield only("object", properties=(Properties(high=count - 1),))
        elif keyword == "maxProperties":
            yield only("object", properties=(Properties(low=(read_count(place, keyword, 0) or 0) + 1),))
        elif keyword in ("patternProperties", "additionalProperties", "propertyNames"):
            self._expander.lose()
            yield from self._wrong_names(term, keyword)
        elif keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            yield from self._independent(term, keyword)
        elif keyword == "unevaluatedProperties" and place.schema[keyword] is not True:
            self._leave_out(term, keyword)

    def _wrong_names(self, term: Term, keyword: str) -> Iterator[Branch]:
        """Objects with only unlisted properties, each of them wrong."""
        place, child = term.place, self._expander.child
        if keyword == "patternProperties":
            for text in read_map(place, keyword):
                wrong = ((text, (child(term, keyword, text, positive=False),)),)
                yield only("object", properties=(Properties(patterns=wrong, rest=NO_VALUE, low=1),))
        elif keyword == "additionalProperties":
            known = tuple((name, NO_VALUE) for name in read_map(place, "properties"))
            patterns = tuple((text, NO_VALUE) for text in read_map(place, "patternProperties"))
            wrong_rest = (child(term, keyword, positive=False),)
            yield only("object", properties=(Properties(known, patterns, wrong_rest, low=1),))
        else:
            names = (child(term, keyword, positive=False),)
            yield only("object", properties=(Properties(low=1, names=names),))

    def _independent(self, term: Term, keyword: str) -> Iterator[Branch]:
        for name, asked in read_map(term.place, keyword).items():
            if isinstance(asked, list):
                for needed in asked:
                    layer = Properties(((needed, NO_VALUE),), required=(name,))
                    yield only("object", properties=(layer,))
            else:
                present = [only("object", properties=(Properties(required=(name,)),))]
                failing = self._expander.expand(self._expander.child(term, keyword, name, positive=False))
                yield from self._expander.join(present, failing, term.place.path)
