"""Turns terms into branches by resolving all keywords for the value itself. Keywords for its parts remain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

from lsv_guidance.schemas import assertions
from lsv_guidance.schemas.branch import (
    ANYTHING,
    Branch,
    Conjunction,
    Either,
    Items,
    Properties,
    Seen,
    Term,
    distinct,
    only,
    only_types,
    others,
)
from lsv_guidance.schemas.building import absent_property, count_items
from lsv_guidance.schemas.comparison import Comparison
from lsv_guidance.schemas.document import Document, Place
from lsv_guidance.schemas.negate import Negation
from lsv_guidance.schemas.refusal import NotFollowed, malformed
from lsv_guidance.schemas.values import branches_of_values, read_count, read_list, read_map, read_texts

MOST_BRANCHES = 5000
"""Limit on alternatives of one value."""
MOST_COMBINED = 500
"""Limit on combinations of the alternatives of two keywords."""
MOST_SUBSETS = 5
"""Limit on schemas of an ``anyOf`` whose combinations are all tried, if it matters which of them hold."""

_APPLICATORS = (
    "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas",
    "dependentRequired", "dependencies", "contains",
)  # fmt: skip


_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)
_ANY = [ANYTHING]


class Expander:
    """Expands the terms of one document, each once. Raises ``NotFollowed``."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.comparison = Comparison(self)
        self.negation = Negation(self)
        self._known: dict[Term, list[Branch]] = {}
        self._open: set[Term] = set()
        self._inexact: set[Term] = set()
        """Terms whose branches lack some values."""
        self._losses = [False]
        """For each term being expanded, outermost first, whether its branches lack some values."""
        self.tracks = bool(document.keywords & {"unevaluatedProperties", "unevaluatedItems"})
        """Whether any keyword depends on evaluated properties or items."""

    def expand_all(self, terms: Conjunction) -> list[Branch]:
        """The branches of a value for which all terms hold, without records of evaluation."""
        found = _ANY
        for term in terms:
            found = self.join(found, self.expand(term), _path(term))
        return distinct(branch.unseen() for branch in found)

    def settle(self, term: Term | Either) -> Term | Either:
        """The target of a term that is only a reference, so that all references to a schema are one term."""
        seen = set[Term]()
        while isinstance(term, Term) and isinstance(term.place.schema, dict) and term not in seen:
            seen.add(term)
            if "$ref" not in term.place.schema or not _ANNOTATIONS.issuperset(term.place.schema.keys() - {"$ref"}):
                break
            term = self.target(term, "$ref", positive=term.positive)
        return term

    def expand(self, term: Term | Either) -> list[Branch]:
        if isinstance(term, Either):
            return distinct(branch.unseen() for one in term.terms for branch in self.expand(one))
        known = self._known.get(term)
        if known is None:
            if term in self._open:
                raise NotFollowed("$ref", term.place.path, "refers to itself directly, so it has no meaning")
            self._open.add(term)
            self._losses.append(False)
            try:
                known = self._known[term] = self._expand(term)
            finally:
                self._open.discard(term)
                if self._losses.pop():
                    self._inexact.add(term)
        if term in self._inexact:
            self.lose()
        return known

    def lose(self) -> None:
        """Record that the term being expanded has values that its branches lack."""
        self._losses[-1] = True

    def expand_exactly(self, terms: Conjunction) -> list[Branch] | None:
        """The branches of a value for which all terms hold; None if they lack some values."""
        self._losses.append(False)
        try:
            found = self.expand_all(terms)
        finally:
            inexact = self._losses.pop()
        return None if inexact else found

    def join(self, one: list[Branch], two: list[Branch], path: str) -> list[Branch]:
        """The branches of a value that has a branch of each list."""
        if len(one) == 1 and one[0] is ANYTHING:
            return two
        if len(two) == 1 and two[0] is ANYTHING:
            return one
        if len(one) > 1 and len(two) > 1 and len(one) * len(two) > MOST_COMBINED:
            raise NotFollowed("", path, f"more than {MOST_COMBINED} combinations of alternatives: simplify the schema")
        return distinct(left & right for left in one for right in two)

    def child(self, term: Term, *steps: str | int, positive: bool = True) -> Term:
        """The term of a schema within a term's schema."""
        return self.at(term, self.document.child(term.place, *steps), positive=positive)

    def at(self, term: Term, place: Place, *, positive: bool = True) -> Term:
        scope = term.scope
        if self.document.has_dynamic_anchors:
            scope = tuple(dict.fromkeys((*(scope or (self.document.root.base,)), term.place.base, place.base)))
        return Term(place, scope, positive)

    def target(self, term: Term, keyword: str, *, positive: bool = True) -> Term:
        """The term of a reference's target."""
        place, reference = term.place, term.place.schema[keyword]
        if keyword == "$dynamicRef":
            scope = self.at(term, place).scope
            return self.at(term, self.document.resolve_dynamic(place, reference, scope), positive=positive)
        if keyword == "$recursiveRef" and "$recursiveAnchor" in self.document.keywords:
            raise NotFollowed(keyword, place.path, "a $recursiveAnchor is not supported: refer to the schema with $ref")
        return self.at(term, self.document.resolve(place, keyword, reference), positive=positive)

    def _expand(self, term: Term) -> list[Branch]:
        schema = term.place.schema
        if isinstance(schema, bool):
            return [ANYTHING] if schema is term.positive else []
        if not isinstance(schema, dict):
            raise NotFollowed("", term.place.path, "a schema must be an object, true or false")
        if not term.positive:
            return distinct(branch.unseen() for branch in self.negation.expand(term))
        found = [ANYTHING]
        for branches in self._factors(term):
            found = self.join(found, branches, term.place.path)
        return self._close(term, found) if self.tracks else found

    def _factors(self, term: Term) -> Iterator[list[Branch]]:
        """The branches of the keywords, in the order of the schema, which is also the order of its properties."""
        schema = term.place.schema
        if "$ref" in schema and len(schema) > 1 and self.document.draft(term.place) <= 7:
            self.lose()  # older drafts ignore all other keywords next to $ref; these are applied anyway
        anchor = "properties" if "properties" in schema else next((k for k in schema if k not in _APPLICATORS), None)
        for keyword in schema:
            if keyword == anchor:
                yield self._own(term)
            elif keyword in _APPLICATORS:
                yield self._apply(term, keyword)

    def _own(self, term: Term) -> list[Branch]:
        """The branches of keywords that are not in-place applicators."""
        place = term.place
        types, integer = assertions.read_types(place)
        branch = Branch(
            types,
            numbers=assertions.read_bounds(place, integer=integer),
            strings=assertions.read_strings(place),
            items=self._items(term) if "array" in types else (),
            properties=self._properties(term) if "object" in types else (),
        )
        found = [replace(branch, seen=self._seen(term)) if self.tracks else branch]
        for keyword in ("const", "enum"):
            if keyword in place.schema:
                values = read_list(place, keyword, empty=True) if keyword == "enum" else [place.schema[keyword]]
                found = self.join(found, branches_of_values(place, values), place.path)
        return found

    def _items(self, term: Term) -> tuple[Items, ...]:
        prefix, rest = assertions.item_steps(self.document, term.place)
        found = Items(
            tuple((self.child(term, *steps),) for steps in prefix),
            () if rest is None else (self.child(term, *rest),),
            read_count(term.place, "minItems", 0) or 0,
            read_count(term.place, "maxItems", None),
            term.place.path if assertions.read_flag(term.place, "uniqueItems") else "",
        )
        return () if found == Items() else (found,)

    def _properties(self, term: Term) -> tuple[Properties, ...]:
        place = term.place
        found = Properties(
            tuple((name, (self.child(term, "properties", name),)) for name in read_map(place, "properties")),
            tuple(self._patterns(term)),
            (self.child(term, "additionalProperties"),) if "additionalProperties" in place.schema else (),
            tuple(dict.fromkeys(read_texts(place, "required"))),
            read_count(place, "minProperties", 0) or 0,
            read_count(place, "maxProperties", None),
            (self.child(term, "propertyNames"),) if "propertyNames" in place.schema else (),
        )
        return () if found == Properties() else (found,)

    def _patterns(self, term: Term) -> Iterator[tuple[str, Conjunction]]:
        for text in read_map(term.place, "patternProperties"):
            assertions.check_pattern(term.place, "patternProperties", text)
            yield text, (self.child(term, "patternProperties", text),)

    def _seen(self, term: Term) -> Seen:
        prefix, rest = assertions.item_steps(self.document, term.place)
        return Seen(
            frozenset(read_map(term.place, "properties")),
            frozenset(read_map(term.place, "patternProperties")),
            "additionalProperties" in term.place.schema,
            len(prefix),
            rest is not None,
        )

    def _close(self, term: Term, branches: list[Branch]) -> list[Branch]:
        """Apply ``unevaluatedProperties`` and ``unevaluatedItems`` to what each branch has not evaluated."""
        for keyword, close in (("unevaluatedProperties", self._close_object), ("unevaluatedItems", self._close_array)):
            if keyword in term.place.schema:
                branches = [close(branch, self.child(term, keyword)) for branch in branches]
        return branches

    def _close_object(self, branch: Branch, left: Term) -> Branch:
        seen = branch.seen
        if seen.all_properties:
            return branch
        layer = Properties(
            tuple((name, ()) for name in sorted(seen.names)),
            tuple((text, ()) for text in sorted(seen.patterns)),
            (left,),
        )
        return replace(branch, properties=(*branch.properties, layer), seen=seen | Seen(all_properties=True))

    def _close_array(self, branch: Branch, left: Term) -> Branch:
        seen = branch.seen
        if seen.all_items:
            return branch
        rest = Either((left, *sorted(seen.containing, key=lambda term: term.place.path))) if seen.containing else left
        layer = Items(((),) * seen.items, (rest,))
        return replace(branch, items=(*branch.items, layer), seen=seen | Seen(all_items=True))

    def _apply(self, term: Term, keyword: str) -> list[Branch]:
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            return self.expand(self.target(term, keyword))
        if keyword == "allOf":
            found = [ANYTHING]
            for number in range(len(read_list(term.place, keyword))):
                found = self.join(found, self.expand(self.child(term, keyword, number)), term.place.path)
            return found
        if keyword == "anyOf":
            return self._any_of(term)
        if keyword == "oneOf":
            return self._one_of(term)
        if keyword == "not":
            return distinct(branch.unseen() for branch in self.expand(self.child(term, keyword, positive=False)))
        if keyword == "if":
            return self._conditional(term)
        if keyword == "contains":
            return self._contains(term)
        return self._dependents(term, keyword)

    def _any_of(self, term: Term) -> list[Branch]:
        count = len(read_list(term.place, "anyOf"))
        options = [self.expand(self.child(term, "anyOf", number)) for number in range(count)]
        found = [branch for option in options for branch in option]
        if self.tracks and len(options) > MOST_SUBSETS:
            self.lose()
        if self.tracks and len(options) > 1:
            sizes = range(2, len(options) + 1) if len(options) <= MOST_SUBSETS else [len(options)]
            for chosen in (chosen for size in sizes for chosen in combinations(options, size)):
                joined = [ANYTHING]
                for option in chosen:
                    joined = self.join(joined, option, term.place.path)
                found += joined
        return self._limited(distinct(found), term)

    def _one_of(self, term: Term) -> list[Branch]:
        """One option holds, and the options that could hold at the same time do not."""
        count = len(read_list(term.place, "oneOf"))
        types = only_types(assertions.read_types(term.place)[0])
        terms = [self.child(term, "oneOf", number) for number in range(count)]
        options = [self.join(types, self.expand(one), "") for one in terms]
        unsure = {number for number, one in enumerate(terms) if one in self._inexact}
        met = self.comparison.find_overlaps(options, unsure, term.place.path)
        found = list[Branch]()
        for number, option in enumerate(options):
            for other in {one + two - number for one, two in met if number in (one, two)}:
                without = self.expand(self.child(term, "oneOf", other, positive=False))
                option = self.join(option, without, term.place.path)
            found += option
        return self._limited(distinct(found), term)

    def _conditional(self, term: Term) -> list[Branch]:
        schema = term.place.schema
        if "then" not in schema and "else" not in schema and not self.tracks:
            return [ANYTHING]
        holds, fails = self.child(term, "if"), self.child(term, "if", positive=False)
        then = self.expand(self.child(term, "then")) if "then" in schema else [ANYTHING]
        otherwise = self.expand(self.child(term, "else")) if "else" in schema else [ANYTHING]
        if not self.tracks and otherwise == [ANYTHING]:
            return distinct([*self.expand(fails), *then])
        if not self.tracks and then == [ANYTHING]:
            return distinct([*self.expand(holds), *otherwise])
        return distinct(
            [
                *self.join(self.expand(holds), then, term.place.path),
                *self.join(self.expand(fails), otherwise, term.place.path),
            ]
        )

    def _dependents(self, term: Term, keyword: str) -> list[Branch]:
        if keyword == "dependencies" and self.document.draft(term.place) > 7:
            self.lose()  # only an annotation in this draft; applied anyway
        found = [ANYTHING]
        for name, asked in read_map(term.place, keyword).items():
            needed = self._dependent(term, keyword, name, asked)
            found = self.join(found, distinct([*absent_property(name), *needed]), term.place.path)
        return found

    def _dependent(self, term: Term, keyword: str, name: str, asked: Any) -> list[Branch]:
        """Objects that have a property and satisfy what depends on it."""
        if isinstance(asked, list) and keyword != "dependentSchemas":
            if not all(isinstance(one, str) for one in asked):
                raise malformed(keyword, term.place.path, "lists of texts", asked)
            return [only("object", properties=(Properties(required=tuple(dict.fromkeys((name, *asked)))),))]
        if keyword == "dependentRequired":
            raise malformed(keyword, term.place.path, "lists of texts", asked)
        present = [only("object", properties=(Properties(required=(name,)),))]
        return self.join(present, self.expand(self.child(term, keyword, name)), term.place.path)

    def _contains(self, term: Term) -> list[Branch]:
        place = term.place
        low, high = read_count(place, "minContains", 1), read_count(place, "maxContains", None)
        wanted, unwanted = self.child(term, "contains"), self.child(term, "contains", positive=False)
        found = list(count_items(wanted, unwanted, 1 if low is None else low, high))
        if low or high is not None:
            self.lose()
        if self.tracks and self.document.draft(place) >= 2020:
            seen = Seen(containing=frozenset({wanted}))
            found = [replace(branch, seen=seen) for branch in found]
        return [others("array"), *found]

    def _limited(self, branches: list[Branch], term: Term) -> list[Branch]:
        if len(branches) > MOST_BRANCHES:
            raise NotFollowed(
                "", term.place.path, f"there are more than {MOST_BRANCHES} alternatives: simplify the schema"
            )
        return branches


def _path(term: Term | Either) -> str:
    return term.place.path if isinstance(term, Term) else term.terms[0].place.path
