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
    """One is made in the engine's process, which calls ``has`` alone, and one in each worker, where ``put`` and ``get``
    are called by several threads at a time.

    What it keeps may go at any time. Nothing it does raises: what can't be kept is dropped, and what can't be had is a
    miss, told of in the log.
    """

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Whether a content can probably be had. It is asked for block after block while a step is planned, in a thread
        whose answer the engine waits for only for a moment.
        """

    @abstractmethod
    def put(self, key: bytes, content: memoryview) -> None:
        """Keep a content; ``content`` is lent for the call."""

    @abstractmethod
    def get(self, key: bytes, into: memoryview) -> bool:
        """Fill ``into`` with a content; whether that is what was put, unchanged and of this size."""

    @abstractmethod
    def remove(self, key: bytes) -> None:
        """A content is wrong: keep it no more. One that is put later under this name counts again."""

    def close(self) -> None:
        """Let go of files and connections."""
