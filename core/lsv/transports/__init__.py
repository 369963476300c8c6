"""The seam to what keeps contents of the KV cache outside an engine: in files, or with other machines.

The engine asks ``has``; every worker puts and gets its own part of a content. Nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from lsv.config import OptionValue


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a transport works."""

    identity: str
    """32 hex digits: contents of one name are the same, and laid out alike, wherever this is the same."""
    rank: int
    """Whose parts of contents are meant."""
    options: Mapping[str, OptionValue]
    """Plugins' settings by full name."""


class Transport(ABC):
    """A store of contents outside of device and host memory.

    The engine's process has one and only calls ``has``. Each worker has one, whose ``put`` and ``get`` are called by
    several threads at a time. Contents may disappear at any time. Methods never raise: a content that can't be saved is
    dropped, a content that can't be loaded is a miss, and both are logged.
    """

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Whether a content can probably be loaded.

        Called for one block after another while a step is planned, in a thread that the engine waits for only briefly.
        """

    @abstractmethod
    def put(self, key: bytes, content: memoryview) -> None:
        """Save a content; ``content`` is only valid during the call."""

    @abstractmethod
    def get(self, key: bytes, into: memoryview) -> bool:
        """Fill ``into`` with a content; returns whether it was there, unchanged and of this size."""

    @abstractmethod
    def remove(self, key: bytes) -> None:
        """Delete a content that is wrong. A later ``put`` under the same name is valid again."""

    def close(self) -> None:
        """Close files and connections."""
