"""Lock-step: replicas that compute together take as many steps as any of them."""

from __future__ import annotations

from lsv.engine.parts.part import Part, PartContext
from lsv.engine.replicas.nodes.links import open_rhythm
from lsv.engine.replicas.rhythm import Rhythm


def make_lockstep(context: PartContext) -> LockstepPart | None:
    """None for an engine that computes alone. Raises like ``open_links``."""
    return LockstepPart(open_rhythm(context.config)) if context.config.topology.shares_experts else None


class LockstepPart(Part):
    """Takes an empty step where others have taken one."""

    name = "lockstep"

    def __init__(self, rhythm: Rhythm) -> None:
        self._rhythm = rhythm
        self.sockets = {rhythm.fileno(): rhythm.listen}

    @property
    def busy(self) -> bool:
        return self._rhythm.behind

    @property
    def needs_step(self) -> bool:
        return self._rhythm.behind

    def before_step(self, step: int) -> None:
        self._rhythm.take()

    def stop(self) -> None:
        self._rhythm.close()
