"""What the parent of API processes and its members tell each other."""

from __future__ import annotations

from typing import Any

import msgspec

from lsv.config import EngineConfig


class Engine(msgspec.Struct, frozen=True):
    """An engine, and where to reach it: each replica at an address of its own."""

    config: EngineConfig
    addresses: tuple[str, ...]


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first message to a member: what it serves, and how."""

    engines: tuple[Engine, ...]
    settings: dict[str, Any]
    metrics: str
    """The folder where members write their metrics, so that each can add up all of them."""


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A member's event loop is running."""

    serving: bool
    """Whether it takes requests, and its engines did once."""
