"""What plugins offer of an engine."""

from __future__ import annotations

import msgspec


class PartOffer(msgspec.Struct, frozen=True):
    """What takes part in every engine: it holds requests back, acts between steps, carries out orders, counts."""

    name: str
    load: str
    """Names a ``(PartContext) -> Part | None`` of ``lsv.engine.parts.part``; None where it has nothing to do.

    It is made in the engine's process and is light to import.
    """
