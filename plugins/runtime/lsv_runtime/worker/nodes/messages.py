"""What a machine that joins and the engine's machine say to each other."""

from __future__ import annotations

import msgspec

from lsv.processes.nodes.newcomer import Newcomer


class Join(Newcomer, frozen=True, kw_only=True, tag=True):
    """A machine with room for its ranks."""

    number: int
    count: int
    nearby: str
    """Where ranks of this machine meet."""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """A machine has joined: it is to start these ranks."""

    ranks: tuple[int, ...]


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """The engine has ended as it was told to."""


Answer = Welcome | Goodbye
