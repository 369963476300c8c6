"""Properties that a schema does not list: their possible names and their schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_, sub
from typing import TypeVar

from lsv_guidance.patterns.automaton import Language
from lsv_guidance.patterns.nondeterministic import TooComplex
from lsv_guidance.patterns.pattern import pattern_of
from lsv_guidance.patterns.text import write_language, write_other_texts
from lsv_guidance.schemas.branch import Conjunction, Either, Properties, Term, both
from lsv_guidance.schemas.merged import language_of
from lsv_guidance.schemas.refusal import NotFollowed

_MOST_PATTERNS = 8
_MOST_LISTED = 1000
"""Limit on names to exclude. An object that lists more gets no unlisted properties, which is narrower."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Others:
    """Unlisted properties whose names match ``pattern``; all unlisted names without a pattern."""

    pattern: str | None
    terms: Conjunction


def find_others(
    layers: Sequence[Properties], listed: Mapping[str, Conjunction], allowed: Language | None, path: str
) -> list[Others]:
    """The unlisted names, split into parts whose properties have the same terms.

    They have no control characters, so that JSON spells each name in one way and none can imitate a listed name.
    ``listed`` are the listed names with the terms of their properties. ``allowed`` are the names that ``propertyNames``
    allows, None for all. Raises ``NotFollowed``.
    """
    patterns = list(dict.fromkeys(text for layer in layers for text, _ in layer.patterns))
    if not patterns and allowed is None:
        terms = reduce(both, (layer.rest for layer in layers), ())
        if any(map(_is_false, terms)) or len(listed) > _MOST_LISTED:
            return []
        return [Others(_guard(partial(write_other_texts, listed), path) if listed else None, terms)]
    if len(patterns) > _MOST_PATTERNS:
        raise NotFollowed("patternProperties", path, f"there are more than {_MOST_PATTERNS} patterns for one object")
    taken = _guard(lambda: Language.of_texts(listed), path)
    plain = language_of(r"^[^\x00-\x1f\x7f]*$")
    found = []
    for matched, part in _cut(patterns, plain if allowed is None else allowed & plain, path):
        terms, free = _terms(layers, matched), _guard(partial(sub, part, taken), path)
        if not free.is_empty and not any(map(_is_false, terms)):
            whole = len(matched) == len(patterns) == 1 and allowed is None and _holds_for_listed(listed, part, terms)
            write = pattern_of(patterns[0]).write if whole else partial(write_language, free)
            found.append(Others(_guard(write, path), terms))
    return found


def _holds_for_listed(listed: Mapping[str, Conjunction], part: Language, terms: Conjunction) -> bool:
    """Whether a pattern may be written unchanged: llguidance also applies ``terms`` to listed names that match."""
    return all(name.isprintable() and (name not in part or set(terms) <= set(listed[name])) for name in listed)


def _is_false(term: Term | Either) -> bool:
    return isinstance(term, Term) and term.place.schema is not term.positive and isinstance(term.place.schema, bool)


def _cut(patterns: list[str], names: Language, path: str) -> list[tuple[frozenset[str], Language]]:
    """The names, split by the patterns that they match."""
    parts = [(frozenset[str](), names)]
    for text in patterns:
        language = language_of(text, path)
        parts = [
            (matched | {text} if work is and_ else matched, _guard(partial(work, part, language), path))
            for matched, part in parts
            for work in (and_, sub)
        ]
        parts = [(matched, part) for matched, part in parts if not part.is_empty]
    return parts


def _terms(layers: Sequence[Properties], matched: frozenset[str]) -> Conjunction:
    found: Conjunction = ()
    for layer in layers:
        known = [terms for text, terms in layer.patterns if text in matched]
        for terms in known or (layer.rest,):
            found = both(found, terms)
    return found


def _guard(work: Callable[[], _T], path: str) -> _T:
    try:
        return work()
    except TooComplex as cause:
        raise NotFollowed("properties", path, f"patterns of unlisted names are too complex: {cause}") from None
