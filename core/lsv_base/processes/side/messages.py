"""Replies of every side process, in addition to its own and ``lsv_base.processes.wire.Failed``."""

from __future__ import annotations

import msgspec

from lsv_base.processes.confinement.terms import Measure


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process is loaded and confined by these measures."""

    measures: tuple[Measure, ...]


class OutOfMemory(msgspec.Struct, frozen=True, tag=True):
    """A command exceeded the memory limit; the process ends."""
