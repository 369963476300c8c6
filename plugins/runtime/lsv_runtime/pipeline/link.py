"""What the ranks of two stages say to each other: the states of a step's tokens, from one to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor

from lsv.config import Topology
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.pipeline.meeting import Meeting
from lsv_runtime.pipeline.stage import Stage

_ON_THEIR_WAY = 2
"""Steps whose states have been sent and may not have arrived; each keeps a copy."""


class Links:
    """A rank's links to its neighbours: a pair of ranks, one in each of two stages, is a group of its own."""

    def __init__(self, before: Communicator | None, behind: Communicator | None) -> None:
        """``before`` is None in the first stage, ``behind`` in the last."""
        self._before, self._behind = before, behind
        self._sent = deque[Callable[[], object]]()

    def receive(self, into: Tensor | None, tokens: int) -> None:
        """Put the states of so many tokens that the stage before has sent into the first of [any, width]; the first
        stage has nothing to receive.
        """
        if self._before is not None and into is not None:
            into[:tokens] = self._before.broadcast(into[:tokens])

    def send(self, states: Tensor, tokens: int) -> None:
        """Hand the first of the states [any, width] on, which may change at once: those of two steps may be on their
        way to a stage that still computes. The last stage has nobody to hand them to.
        """
        if self._behind is None:
            return
        while len(self._sent) >= _ON_THEIR_WAY:
            self._sent.popleft()()
        self._sent.append(self._behind.start_broadcast(states[:tokens]))

    def close(self) -> None:
        """Leave both groups. What has not arrived is not waited for: a stage that is gone would never take it."""
        self._sent.clear()
        for link in (self._before, self._behind):
            if link is not None:
                link.close()


def neighbours(rank: int, topology: Topology, meeting: Meeting) -> tuple[Group | None, Group | None]:
    """The groups that a rank forms with the rank of its place in the stage before and in the one behind."""
    stage = Stage.of_rank(rank, topology)
    before = None if stage.begins else _pair(rank - topology.tensor, topology, 1, meeting)
    return before, None if stage.ends else _pair(rank, topology, 0, meeting)


def _pair(first: int, topology: Topology, place: int, meeting: Meeting) -> Group:
    pair = (first, first + topology.tensor)
    return Group("pp", pair, place, meeting.of(pair, f"pp{first}"))
