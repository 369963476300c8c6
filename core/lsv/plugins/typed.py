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

Fits = Callable[[object], bool]
"""Whether a value has a type."""


def check_types(record: msgspec.Struct) -> None:
    """Raises ``TypeError`` naming the first field whose value is not of its type."""
    for name, (hint, fits) in _fields(type(record)).items():
        value = getattr(record, name)
        if not fits(value):
            raise TypeError(f"{type(record).__name__}.{name} must be {spell(hint)}, got {value!r:.{_TOLD}}")


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[Any, Fits]]:
    """The annotation of each field, with its predicate."""
    return {name: (hint, _fits(hint)) for name, hint in get_type_hints(kind).items()}


def _fits(hint: Any) -> Fits:
    """The predicate of an annotation. A string is not a sequence of strings: the likely slip is a missing comma."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (Union, types.UnionType):
        choices = [_fits(one) for one in arguments]
        return lambda value: any(fits(value) for fits in choices)
    if origin is Literal:
        return lambda value: value in arguments
    if origin is Callable or hint is Callable:
        return callable
    if origin is tuple:
        return _fits_tuple(arguments)
    if origin is not None and issubclass(origin, Mapping):
        key, one = map(_fits, arguments)
        return lambda value: isinstance(value, Mapping) and all(key(k) and one(v) for k, v in value.items())
    if origin is not None and issubclass(origin, Sequence | AbstractSet):
        item = _fits(arguments[0])
        return lambda value: isinstance(value, origin) and not isinstance(value, str) and all(map(item, value))
    return _fits_plain(type(None) if hint is None else hint)


def _fits_tuple(arguments: tuple[Any, ...]) -> Fits:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _fits(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    items = [_fits(one) for one in arguments]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(items)
        and all(fits(one) for fits, one in zip(items, value, strict=True))
    )


def _fits_plain(kind: type) -> Fits:
    """A bool is not a number."""
    if kind is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if kind in (bool, object):
        return lambda value: isinstance(value, kind)
    return lambda value: isinstance(value, kind) and not isinstance(value, bool)


def spell(hint: Any) -> str:
    """An annotation as an author of plugins writes it."""
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint).replace("typing.", "")
