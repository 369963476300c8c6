"""The combined terms of several schemas for one property or item."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lsv_guidance.patterns.automaton import Language
from lsv_guidance.patterns.nondeterministic import TooComplex
from lsv_guidance.patterns.pattern import pattern_of
from lsv_guidance.patterns.syntax import UnreadablePattern
from lsv_guidance.schemas.branch import Conjunction, Items, Properties, both
from lsv_guidance.schemas.refusal import NotFollowed


@dataclass(frozen=True, slots=True)
class Array:
    prefix: tuple[Conjunction, ...]
    rest: Conjunction
    low: int
    high: int | None
    unique: str

    def item(self, number: int) -> Conjunction:
        return self.prefix[number] if number < len(self.prefix) else self.rest


def merge_items(layers: Iterable[Items]) -> Array:
    prefix, rest, low, high, unique = (), (), 0, None, ""
    for layer in layers:
        count = max(len(prefix), len(layer.prefix))
        prefix = tuple(
            both(prefix[n] if n < len(prefix) else rest, layer.prefix[n] if n < len(layer.prefix) else layer.rest)
            for n in range(count)
        )
        rest, low = both(rest, layer.rest), max(low, layer.low)
        high = min((bound for bound in (high, layer.high) if bound is not None), default=None)
        unique = unique or layer.unique
    return Array(prefix, rest, low, high, unique)


def terms_of_property(layers: Iterable[Properties], name: str) -> Conjunction:
    """What a property of this name satisfies."""
    return terms_of_properties(layers, [name])[name]


def terms_of_properties(layers: Iterable[Properties], names: Iterable[str]) -> dict[str, Conjunction]:
    """What properties of these names satisfy."""
    found: dict[str, Conjunction] = dict.fromkeys(names, ())
    for layer in layers:
        named = dict(layer.named)
        for name in found:
            known = [named[name]] if name in named else []
            known += [terms for text, terms in layer.patterns if name in language_of(text)]
            for terms in known or (layer.rest,):
                found[name] = both(found[name], terms)
    return found


def language_of(text: str, path: str = "#") -> Language:
    """The texts that a pattern matches. Raises ``NotFollowed``."""
    try:
        return pattern_of(text).language
    except (TooComplex, UnreadablePattern) as cause:
        raise NotFollowed("pattern", path, f"{text[:100]}: {cause}") from None


def names_of(layers: Iterable[Properties]) -> list[str]:
    """The listed names in order, then names that are only required."""
    layers = list(layers)
    listed = [name for layer in layers for name, _ in layer.named]
    return list(dict.fromkeys([*listed, *(name for layer in layers for name in layer.required)]))


def required_of(layers: Iterable[Properties]) -> set[str]:
    return {name for layer in layers for name in layer.required}
