"""Whether what a plugin declared has the types it should have: records are not checked when they are made."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

_TOLD = 60
"""Characters of a value that an error shows."""


def check_types(record: msgspec.Struct) -> None:
    """Raises ``TypeError`` naming the first field whose value is not of its type."""
    for name, hint in _hints(type(record)).items():
        value = getattr(record, name)
        if not fits(value, hint):
            raise TypeError(f"{type(record).__name__}.{name} must be {spell(hint)}, got {value!r:.{_TOLD}}")


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotation. A text is no sequence of texts: the likely slip is a missing comma."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin is Callable or hint is Callable:
        return callable(value)
    if origin is tuple:
        same = len(arguments) == 2 and arguments[1] is Ellipsis
        kinds = (arguments[0],) * len(value) if same and isinstance(value, tuple) else arguments
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, arguments[0]) and fits(one, arguments[1]) for key, one in value.items()
        )
    if origin is not None and issubclass(origin, Sequence | AbstractSet):
        whole = isinstance(value, origin) and not isinstance(value, str)
        return whole and all(fits(one, arguments[0]) for one in value)  # type: ignore[attr-defined]
    kind = type(None) if hint is None else hint
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool) or kind is object)


def spell(hint: Any) -> str:
    """An annotation as an author of plugins writes it."""
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint).replace("typing.", "")
