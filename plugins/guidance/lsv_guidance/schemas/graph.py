"""The graph of a schema's values: numbered nodes with their options."""

from __future__ import annotations

from collections.abc import Iterator

from lsv_guidance.schemas.branch import Conjunction, Either, Term
from lsv_guidance.schemas.building import NO_VALUE
from lsv_guidance.schemas.expand import Expander
from lsv_guidance.schemas.options import Array, Object, Option, OptionMaker, Scalar
from lsv_guidance.schemas.refusal import NotFollowed

MOST_NODES = 20_000
MOST_OPTIONS = 50_000
DEEPEST = 100
"""Limit on the nesting of values before a schema repeats itself."""


class Graph:
    """Node 0 is the whole value. Raises ``NotFollowed``."""

    def __init__(self, expander: Expander, root: Term) -> None:
        self._numbers: dict[frozenset[Term | Either], int] = {}
        self._terms: list[Conjunction] = []
        self._depths: list[int] = []
        self._depth = 0
        self.options: list[list[Option]] = []
        self._settle = expander.settle
        maker = OptionMaker(self._number, expander.expand_all)
        self._number((root,))
        count = 0
        for terms in self._terms:
            self._depth = self._depths[len(self.options)] + 1
            path = _path_of(terms)
            found = [option for branch in expander.expand_all(terms) for option in maker.options(branch, path)]
            self.options.append(found)
            count += len(found)
            if count > MOST_OPTIONS:
                raise NotFollowed("", path, f"the schema has more than {MOST_OPTIONS} alternatives: simplify it")
        self.alive = self._find_alive()

    def path(self, node: int) -> str:
        return _path_of(self._terms[node])

    def first_dead(self) -> int:
        """The reason why node 0 has no value: a node inside it that has no options, or needs itself."""
        node, seen = 0, set[int]()
        while node not in seen:
            seen.add(node)
            dead = (part for option in self.options[node] for part in parts_of(option) if part not in self.alive)
            node = next((part for part in dead if self._terms[part] != NO_VALUE), node)
        return node

    def fits(self, option: Option) -> bool:
        """Whether this option has a finite value."""
        if isinstance(option, Array):
            return (option.high is None or option.low <= option.high) and all(
                node in self.alive for node in required_items(option)
            )
        if isinstance(option, Object):
            return all(node in self.alive for name, node in option.properties if name in option.required)
        return True

    def _find_alive(self) -> set[int]:
        self.alive = set[int]()
        waiting = set(range(len(self.options)))
        while found := {node for node in waiting if any(map(self.fits, self.options[node]))}:
            self.alive |= found
            waiting -= found
        return self.alive

    def _number(self, terms: Conjunction) -> int:
        if terms:
            terms = tuple(dict.fromkeys(map(self._settle, terms)))
        key = frozenset(terms)
        if key not in self._numbers:
            if len(self._terms) >= MOST_NODES or self._depth > DEEPEST:
                deep, many = f"is nested more than {DEEPEST} deep", f"has more than {MOST_NODES} parts"
                limit = deep if self._depth > DEEPEST else many
                raise NotFollowed("", _path_of(terms)[:200], f"the schema {limit}: simplify it")
            self._numbers[key] = len(self._terms)
            self._terms.append(terms)
            self._depths.append(self._depth)
        return self._numbers[key]


def required_items(option: Array) -> Iterator[int]:
    """The nodes of the items that every array of the option has, each once."""
    yield from option.prefix[: option.low]
    if option.low > len(option.prefix):
        yield option.rest


def parts_of(option: Option) -> Iterator[int]:
    """The nodes of the values within."""
    if isinstance(option, Array):
        yield from (*option.prefix, option.rest)
    elif isinstance(option, Object):
        yield from (node for _, node in (*option.properties, *option.others))
    else:
        assert isinstance(option, Scalar)


def _path_of(terms: Conjunction) -> str:
    paths = [term.place.path if isinstance(term, Term) else term.terms[0].place.path for term in terms]
    return next((path for path in paths if not path.startswith("#const")), "#")
