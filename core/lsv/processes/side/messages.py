"""What every side process says, beside its own replies and ``lsv.processes.wire.Failed``."""

from __future__ import annotations

import msgspec

from lsv.processes.confinement.terms import Measure


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All is loaded, and the process is confined like this."""

    measures: tuple[Measure, ...]


class OutOfMemory(msgspec.Struct, frozen=True, tag=True):
    """A command needed more memory than the process may have; it ends."""
