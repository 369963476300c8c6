"""Reading ``quantization_config`` and the like: anything that is not understood or can't be honoured is refused by
name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lsv.errors import CheckpointError

T = TypeVar("T")


class Scheme:
    """A JSON object that knows which of its keys have not been read. ``where`` is its file and place there, for
    messages.
    """

    def __init__(self, json: Any, where: str = "config.json: quantization_config") -> None:
        if not isinstance(json, Mapping):
            raise CheckpointError(f"{where} must be an object, got {json!r}")
        self.json, self.where = json, where
        self._left = set(json)

    def choose(self, key: str, allowed: Sequence[T], default: T | None = None) -> T:
        """The value of ``key``, or ``default`` if it is absent or null. Raises ``CheckpointError`` if it is not one of
        ``allowed``.
        """
        self._left.discard(key)
        value = self.json.get(key)
        value = default if value is None else value
        for one in allowed:
            if value == one and isinstance(value, type(one)):
                return one
        raise self.error(f"{key} is {value!r}; what can be read is {', '.join(map(repr, allowed))}")

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings, empty if the key is absent or null."""
        self._left.discard(key)
        value = self.json.get(key) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(f"{key} must be a list of names, got {value!r}")
        return tuple(value)

    def count(self, key: str, default: int | None = None) -> int | None:
        """A positive integer, or ``default``."""
        self._left.discard(key)
        value = self.json.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a positive whole number, got {value!r}")
        return value

    def counts(self, key: str, length: int) -> tuple[int, ...] | None:
        """``length`` positive integers."""
        self._left.discard(key)
        value = self.json.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(type(n) is int and n > 0 for n in value):
            raise self.error(f"{key} must be {length} positive whole numbers, got {value!r}")
        return tuple(value)

    def inner(self, key: str) -> Scheme | None:
        """The object under ``key``, None if it is absent or null."""
        self._left.discard(key)
        value = self.json.get(key)
        return None if value is None else Scheme(value, f"{self.where}.{key}")

    def pass_over(self, *keys: str) -> None:
        """Mark keys as read that do not affect the result, or that others read."""
        self._left.difference_update(keys)

    def finish(self) -> None:
        """Raise ``CheckpointError`` naming the unread keys, except those with empty or false values."""
        unknown = sorted(key for key in self._left if self.json[key] not in (None, False, "", [], {}))
        if unknown:
            found = ", ".join(f"{key} = {self.json[key]!r}" for key in unknown)
            raise self.error(f"{found} can't be honoured: nothing is known about it")

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {problem}")
