"""What plugins offer of an engine."""

from __future__ import annotations

import msgspec


class PartOffer(msgspec.Struct, frozen=True):
    """What takes part in every engine, in its workers, or in both."""

    name: str

    load: str = ""
    """Names a ``(PartContext) -> Part | None`` of ``lsv.engine.parts.part``, made in the engine's process.

    It is light to import. None takes no part.
    """

    worker: str = ""
    """Names a ``(WorkerPartContext) -> WorkerPart | None`` of ``lsv_runtime.worker.parts.part``, made in workers."""
