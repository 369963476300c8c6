"""Copies of blocks' contents between the device and what is behind it, as a step's plan orders them."""

from __future__ import annotations

import msgspec


class Save(msgspec.Struct, frozen=True, omit_defaults=True):
    """A content that leaves the device."""

    key: bytes
    """The name of the content: its cohort, then the hash of its block."""
    blocks: tuple[int, ...]
    """The bundle that holds it."""
    cells: tuple[int, ...] = ()
    """Where it goes in host memory, a cell for each block; empty is nowhere."""
    keep: bool = False
    """Whether the transport gets it, too."""


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """A content that comes back, before the step's rows are computed."""

    key: bytes
    blocks: tuple[int, ...]
    """The bundle that it goes to."""
    slot: int
    """The slot of the request that reads it; that of a plan, so it is not known before. -1 for no request yet."""
    cells: tuple[int, ...] = ()
    """Where it is in host memory; empty is with the transport."""
