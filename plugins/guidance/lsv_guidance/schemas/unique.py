"""Enumerates the arrays with unique items if only a few constants can be items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lsv_guidance.schemas.graph import Graph
from lsv_guidance.schemas.options import Array, Scalar
from lsv_guidance.schemas.refusal import NotFollowed

_MOST = 2000
"""Limit on enumerated arrays."""
_FEW: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}


def different_items(graph: Graph, option: Array, high: int | None) -> list[list[Any]]:
    """Raises ``NotFollowed`` if items can be anything else, or there are too many arrays."""
    refused = NotFollowed(
        "uniqueItems",
        option.unique,
        "only supported if the items are a few constants: leave it out and check the answer",
    )
    prefix = [_constants(graph, node) for node in option.prefix[:high]]
    rest = _constants(graph, option.rest) if high is None or high > len(prefix) else []
    if rest is None or any(values is None for values in prefix):
        raise refused
    found: list[list[Any]] = []
    for number, values in enumerate(_arrays([values or [] for values in prefix], rest, high)):
        if len(values) >= option.low:
            found.append(values)
        if number > _MOST:
            raise refused
    return found


def _arrays(prefix: list[list[Any]], rest: list[Any], high: int | None) -> Iterator[list[Any]]:
    waiting: list[list[Any]] = [[]]
    while waiting:
        values = waiting.pop()
        yield values
        if high is None or len(values) < high:
            following = prefix[len(values)] if len(values) < len(prefix) else rest
            waiting += [[*values, value] for value in reversed(following) if not _has(values, value)]


def _has(values: list[Any], value: Any) -> bool:
    return any(one == value and isinstance(one, bool) is isinstance(value, bool) for one in values)


def _constants(graph: Graph, node: int) -> list[Any] | None:
    """All values of a node, if they are scalar constants."""
    found: list[Any] = []
    for option in graph.options[node]:
        if not isinstance(option, Scalar):
            return None
        schema = option.schema
        if "enum" in schema or "const" in schema:
            found += schema.get("enum", [schema.get("const")])
            continue
        types = schema.get("type", "any")
        for name in types if isinstance(types, list) else [types]:
            if name not in _FEW:
                return None
            found += _FEW[name]
    return found
