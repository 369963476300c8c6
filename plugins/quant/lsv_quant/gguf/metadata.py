"""The keys of a GGUF file's architecture. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lsv_base.errors import CheckpointError

T = TypeVar("T", int, float, str, bool, list[Any])


class Metadata:
    """The keys of a model's architecture; it knows which of them have not been read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        prefix = f"{metadata['general.architecture']}."
        self._prefix = prefix
        self._left = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}

    def has(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of ``key``, which is read by that. Otherwise as ``peek``."""
        value = self.peek(key, kind, default)
        self.skip(key)
        return value

    def skip(self, *keys: str) -> None:
        """Take them as read."""
        for key in keys:
            self._left.pop(key, None)

    def peek(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of ``key``. Raises ``CheckpointError`` if it has another type, or is absent without a default."""
        value = self._left.get(key, default)
        if type(value) is int and kind is float:
            return kind(value)
        if type(value) is not kind:
            raise CheckpointError(f"{self._prefix}{key} must be {kind.__name__}, found {value!r:.100}", param="model")
        return value

    def count(self, key: str) -> int:
        """The value of ``key``, a positive number; otherwise as ``take``."""
        value = self.take(key, int)
        if value < 1:
            raise CheckpointError(f"{self._prefix}{key} must be positive, found {value}", param="model")
        return value

    def finish(self) -> None:
        """Raise ``CheckpointError`` naming the unread keys."""
        if self._left:
            found = ", ".join(f"{self._prefix}{key} = {value!r}" for key, value in sorted(self._left.items()))
            raise CheckpointError(f"the GGUF file has keys that are not known and could change results: {found}")
