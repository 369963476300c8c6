"""The steps of replicas that compute together: each takes as many as any of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lsv.config import Topology

_COUNT = struct.Struct("<q")
_MOST = 1 << 16
"""Bytes that are read at a time, as many as a pipe holds."""


class Rhythm:
    """One engine's view of the steps that all take.

    Each tells the others how many it has taken, in pipes in the folder where they meet; whoever hears of more than its
    own is ``behind``, and takes a step even if it is empty. So the n-th step of each is the n-th of all. A step ends
    when all have taken it, so that no engine is ahead by more than its steps in flight, and no pipe is ever full.
    """

    def __init__(self, topology: Topology) -> None:
        """The pipes have been made by ``make_pipes``."""
        pipes = [_pipe(Path(topology.meeting), number) for number in range(topology.data)]
        # for reading, too: then there is always a reader, and opening needs nobody else
        every = [os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for pipe in pipes]
        self._own, self._others = every.pop(topology.replica), every
        self._taken = self._asked = 0

    def fileno(self) -> int:
        """Readable once others have said something: then ``listen``."""
        return self._own

    @property
    def behind(self) -> bool:
        """Whether others have taken a step that this engine has not."""
        return self._taken < self._asked

    def take(self) -> None:
        """This engine is about to take a step."""
        self._taken += 1
        for other in self._others:
            os.write(other, _COUNT.pack(self._taken))

    def listen(self) -> None:
        """Hear how many steps the others have taken."""
        with suppress(BlockingIOError):
            while said := os.read(self._own, _MOST):
                self._asked = max(self._asked, *(count for (count,) in _COUNT.iter_unpack(said)))

    def close(self) -> None:
        """Say and hear nothing more. May be called again."""
        every: Sequence[int] = [] if self._own < 0 else [self._own, *self._others]
        self._own, self._others = -1, []
        for pipe in every:
            os.close(pipe)


def make_pipes(folder: Path, replicas: int) -> None:
    """Where as many replicas will meet."""
    for number in range(replicas):
        os.mkfifo(_pipe(folder, number), 0o600)


def _pipe(folder: Path, number: int) -> Path:
    return folder / f"steps-{number}"
