"""The seam to what finds machines for replicas, such as a cluster's scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Place(Protocol):
    """Room for a replica on some machine. Its ``str`` is for the log, as in " on node 10.0.0.2"."""

    @property
    def share(self) -> tuple[int, int]:
        """Which of the replicas that share the machine's devices this one is, and how many they are; (0, 1) where it
        sees no devices but its own.
        """
        ...

    def serve(self, charge: bytes) -> bytes:
        """What ``lsv.engine.replicas.nodes.charge.run`` returns there, in the main thread of a process.

        Raises ``EngineDied`` when the place is lost.
        """
        ...

    def move(self) -> None:
        """Find room elsewhere, or there again, for as long as that takes."""
        ...


class Placer(Protocol):
    """Made with ``(config, catalog)`` in a process of its own, which ends with the server. Places are used in threads,
    one each.
    """

    def join(self) -> str:
        """Join the machines; the address of this one, as the others reach it. Raises ``ConfigError``."""
        ...

    def find(self) -> Sequence[Place]:
        """Room for each replica, those of a machine one after another. Raises ``ConfigError`` where there is too little
        and ``StartError``.
        """
        ...

    def leave(self) -> None:
        """Give all room back, and end what still runs there."""
        ...
