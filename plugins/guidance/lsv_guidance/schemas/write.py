"""Writes a graph of values as one JSON schema that llguidance follows exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

from lsv_guidance.schemas.branch import Term
from lsv_guidance.schemas.document import Document
from lsv_guidance.schemas.expand import Expander
from lsv_guidance.schemas.graph import Graph, parts_of
from lsv_guidance.schemas.options import Array, Object, Option, Scalar
from lsv_guidance.schemas.refusal import NotFollowed
from lsv_guidance.schemas.unique import different_items

_INLINE = 12
"""Nesting depth at which a part becomes a definition, because JSON readers limit nesting."""
_MOST_SELECTIONS = 64
"""Limit on enumerated selections of optional properties, if their count is bounded."""
_CHOSEN = 5
"""If there are more selections, only this many optional properties may appear, the first ones."""


def rewrite(schema: Any) -> dict[str, Any]:
    """A schema that allows no value that ``schema`` forbids. Raises ``NotFollowed``."""
    document = Document(schema)
    expander = Expander(document)
    graph = Graph(expander, expander.at(Term(document.root), document.root))
    if 0 not in graph.alive:
        for keyword, path in expander.negation.left_out[:1]:
            raise NotFollowed(keyword, path, "it can't be negated, as under not")
        raise NotFollowed("", graph.path(graph.first_dead()), "no value of finite size satisfies this schema")
    return _Writer(graph).write()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._uses = Counter[int | Object]({0: 1})
        """How often each node occurs, and each option of objects, which several nodes may share."""
        self._count_uses()
        self._definitions: dict[str, Any] = {}
        self._waiting: list[int | Object] = []
        self._names: dict[int | Object, str] = {}

    def write(self) -> dict[str, Any]:
        found = self._node(0, 0) if self._uses[0] == 1 else {"$ref": self._name(0)}
        while self._waiting:
            part = self._waiting.pop()
            self._definitions[self._names[part]] = (
                self._any_of(part, 0) if isinstance(part, int) else _any_of(list(self._objects(part, 0)))
            )
        return {**found, "$defs": self._definitions} if self._definitions else found

    def _count_uses(self) -> None:
        waiting: list[int | Object] = [0]
        while waiting:
            part = waiting.pop()
            for following in self._parts(part):
                self._uses[following] += 1
                if self._uses[following] == 1:
                    waiting.append(following)

    def _parts(self, part: int | Object) -> Iterator[int | Object]:
        if isinstance(part, Object):
            yield from parts_of(part)
            return
        for option in self._graph.options[part]:
            if self._graph.fits(option):
                yield from [option] if isinstance(option, Object) else parts_of(option)

    def _node(self, node: int, depth: int) -> dict[str, Any]:
        options = self._graph.options[node]
        small = len(options) < 4 and all(isinstance(option, Scalar) for option in options)
        if not small and depth and (self._uses[node] > 1 or depth > _INLINE):
            return {"$ref": self._name(node)}
        return self._any_of(node, depth)

    def _name(self, part: int | Object) -> str:
        if part not in self._names:
            self._names[part] = f"v{len(self._names)}"
            self._waiting.append(part)
        return f"#/$defs/{self._names[part]}"

    def _any_of(self, node: int, depth: int) -> dict[str, Any]:
        fitting = [option for option in self._graph.options[node] if self._graph.fits(option)]
        found = [schema for option in fitting for schema in self._option(option, depth + 1)]
        if not found:
            raise NotFollowed("", self._graph.path(node), "no value satisfies this schema")
        return _any_of(found)

    def _option(self, option: Option, depth: int) -> Iterator[dict[str, Any]]:
        if isinstance(option, Scalar):
            yield option.schema
        elif isinstance(option, Array):
            yield from self._array(option, depth)
        elif self._uses[option] > 1:
            yield {"$ref": self._name(option)}
        else:
            yield from self._objects(option, depth)

    def _array(self, option: Array, depth: int) -> Iterator[dict[str, Any]]:
        alive, high = self._graph.alive, option.high
        ends = next((number for number, node in enumerate(option.prefix) if node not in alive), None)
        if ends is None and option.rest not in alive:
            ends = len(option.prefix)
        if ends is not None:
            high = ends if high is None else min(high, ends)
        if option.unique and (high is None or high > 1):
            if arrays := different_items(self._graph, option, high):
                yield {"enum": arrays}
            return
        prefix = option.prefix[:high]
        found: dict[str, Any] = {"type": "array"}
        if prefix:
            found["prefixItems"] = [self._node(node, depth) for node in prefix]
        if high is not None and high <= len(prefix):
            found["items"] = False
        elif (items := self._node(option.rest, depth)) != {}:
            found["items"] = items
        if option.low:
            found["minItems"] = option.low
        if high is not None and high > len(prefix):
            found["maxItems"] = high
        yield found

    def _objects(self, option: Object, depth: int) -> Iterator[dict[str, Any]]:
        alive = self._graph.alive
        listed = [(name, node) for name, node in option.properties if node in alive]
        others = [(pattern, node) for pattern, node in option.others if node in alive]
        optional = [name for name, _ in listed if name not in option.required]
        low = max(0, option.low - len(option.required))
        high = None if option.high is None else option.high - len(option.required)
        if high is not None and high >= len(optional) and not others:
            high = None
        if (high is not None and high < 0) or (low > len(optional) and not others):
            return
        if not low and high is None:
            yield self._fields(option, dict(listed), others, depth)
            return
        if not others and low < 2 and high in (None, 1) and len(optional) <= _MOST_SELECTIONS:
            yield self._fields(option, dict(listed), others, depth, counted=True)  # llguidance handles 1 itself
            return
        for needed, free in _selections(optional, low, high, others=bool(others)):
            kept = {name: node for name, node in listed if name in {*option.required, *needed, *free}}
            exact = replace(option, required=option.required.union(needed))
            yield self._fields(exact, kept, others, depth, counted=True)

    def _fields(
        self,
        option: Object,
        listed: dict[str, int],
        others: list[tuple[str | None, int]],
        depth: int,
        *,
        counted: bool = False,
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "object"}
        properties = {name: self._node(node, depth) for name, node in listed.items()}
        forbidden = {name: False for name, _ in option.properties if name not in properties}
        if properties or forbidden:
            found["properties"] = {**properties, **forbidden}
        if required := [name for name in properties if name in option.required]:
            found["required"] = required
        patterns = {pattern: self._node(node, depth) for pattern, node in others if pattern is not None}
        if patterns:
            found["patternProperties"] = patterns
        if others and others[0][0] is None:
            if (rest := self._node(others[0][1], depth)) != {}:
                found["additionalProperties"] = rest
        else:
            found["additionalProperties"] = False
        if counted and option.low > len(option.required):
            found["minProperties"] = option.low
        if counted and option.high is not None:
            found["maxProperties"] = option.high
        return found


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if not schemas:
        raise NotFollowed("minProperties", "#", "contradicts maxProperties or the properties")
    if {} in schemas:
        return {}
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _selections(
    optional: list[str], low: int, high: int | None, *, others: bool
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Selections of optional properties, present or possible, with ``low`` to ``high`` present.

    Other properties can only count if none of the optional ones is free.
    """
    names = tuple(optional)
    if low == 1 and high is None:
        for number, name in enumerate(names[:_MOST_SELECTIONS]):
            yield (name,), names[number + 1 :]
        if others:
            yield (), ()
        return
    most = len(names) if high is None else min(high, len(names))
    sizes = range(0 if others else low, most + 1)
    if sum(comb(len(names), size) for size in sizes) > _MOST_SELECTIONS:
        sizes, names = range(sizes.start, min(most, _CHOSEN) + 1), names[: max(sizes.start, _CHOSEN)]
    for size in sizes:
        yield from ((chosen, ()) for chosen in combinations(names, size))
