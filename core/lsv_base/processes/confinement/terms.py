"""How a side process is confined, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["auto", "require", "off"]
"""``auto`` takes every measure that the system has, ``require`` refuses to work without one of them."""


class Terms(msgspec.Struct, frozen=True, tag=True):
    """The first message to a side process."""

    memory: int
    """Bytes that it may add to what it has loaded."""
    seconds: float
    """Processor time that it may take for a reply, of all its threads together."""
    mode: Mode = "auto"
    files: int = 64
    """Files that it may have open."""


class Measure(msgspec.Struct, frozen=True):
    """One thing a side process has given up; or why it could not, and what is left in its place."""

    name: str
    held: bool
    found: str


class Unavailable(Exception):
    """The system does not have what a measure needs."""
