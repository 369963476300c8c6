"""Finds whether two branches can be proved to be disjoint."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import combinations
from typing import Any

from lsv_guidance.schemas.branch import Branch, Conjunction
from lsv_guidance.schemas.expansion import Expansion
from lsv_guidance.schemas.merged import merge_items, required_of, terms_of_property
from lsv_guidance.schemas.numbers import has_number
from lsv_guidance.schemas.refusal import NotFollowed
from lsv_guidance.schemas.strings import has_string

_DEPTH = 3
"""How deep into values to look for a difference."""
_MOST_COMPARED = 60
"""Limit on schemas of a ``oneOf`` that are compared pairwise."""


class Comparison:
    def __init__(self, expander: Expansion) -> None:
        self._expander = expander

    def find_overlaps(self, options: Sequence[list[Branch]], unsure: Set[int], path: str) -> list[tuple[int, int]]:
        """The pairs of options that a value may satisfy at once, by number.

        ``unsure`` options have more values than their branches, so they may overlap with any other option.
        """
        if not unsure and self._told_apart(options):
            return []
        if len(options) > _MOST_COMPARED:
            raise NotFollowed(
                "oneOf",
                path,
                f"it has more than {_MOST_COMPARED} schemas: give each a required property with a const, or use anyOf",
            )
        return [
            (one, two)
            for one, two in combinations(range(len(options)), 2)
            if one in unsure
            or two in unsure
            or not all(self.is_empty(left & right) for left in options[one] for right in options[two])
        ]

    def is_empty(self, branch: Branch, depth: int = _DEPTH) -> bool:
        """Whether this branch provably has no value."""
        return not any(self._has_value(branch, name, depth) for name in branch.types)

    def _has_value(self, branch: Branch, name: str, depth: int) -> bool:
        if name == "boolean":
            return bool(branch.booleans)
        if name == "number":
            return has_number(branch.numbers)
        if name == "string":
            return has_string(branch.strings)
        if name == "array":
            array = merge_items(branch.items)
            fits = array.high is None or array.low <= array.high
            shown = range(min(array.low, len(array.prefix) + 1))
            return fits and not any(self._no_value(array.item(number), depth) for number in shown)
        if name == "object":
            required = required_of(branch.properties)
            return not any(self._no_value(terms_of_property(branch.properties, one), depth) for one in required)
        return True

    def _no_value(self, terms: Conjunction, depth: int) -> bool:
        if not terms or depth == 0:
            return False
        try:
            found = self._expander.expand_exactly(terms)
        except NotFollowed:  # reported when the part is written, if ever
            return False
        return found is not None and all(self.is_empty(branch, depth - 1) for branch in found)

    def _told_apart(self, options: Sequence[list[Branch]]) -> bool:
        """Whether all options are different constants, or have a required property with different constants."""
        if len(options) < 3 or any(len(option) != 1 for option in options):
            return False
        branches = [option[0] for option in options]
        if _differ([_constants(branch) for branch in branches]):
            return True
        names = set.intersection(*(required_of(branch.properties) for branch in branches))
        return any(_differ([self._constants_of(branch, name) for branch in branches]) for name in names)

    def _constants_of(self, branch: Branch, name: str) -> list[Any] | None:
        if branch.types != {"object"}:
            return None
        try:
            found = self._expander.expand_exactly(terms_of_property(branch.properties, name))
        except NotFollowed:
            return None
        return _constants(found[0]) if found is not None and len(found) == 1 else None


def _constants(branch: Branch) -> list[Any] | None:
    """The only values of a branch of texts or of numbers; None for others."""
    if branch.types == {"string"} and branch.strings.values is not None:
        return list(branch.strings.values)
    if branch.types == {"number"} and branch.numbers.values is not None:
        return list(branch.numbers.values)
    return None


def _differ(groups: Sequence[list[Any] | None]) -> bool:
    if any(group is None for group in groups):
        return False
    return len({value for group in groups for value in group or ()}) == sum(len(group or ()) for group in groups)
