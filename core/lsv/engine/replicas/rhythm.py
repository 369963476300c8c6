"""The steps of replicas that compute together: each takes as many as any of them."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lsv.config import Topology
from lsv_base.processes.folder import PrivateFolder

_COUNT = struct.Struct("<q")
_MOST = 1 << 16
"""Bytes that are read at a time, as many as a pipe holds."""


class Rhythm:
    """One engine's view of the steps that all take.

    Each tells the others how many it has taken, before it takes one; whoever hears of more than its own is ``behind``,
    and takes a step even if it is empty. So the n-th step of each is the n-th of all. A step ends when all have taken
    it, so that no engine is ahead by more than its steps in flight, and nothing that is told ever waits to be heard.
    """

    def __init__(self, heard: Iterable[int], told: Iterable[int]) -> None:
        """File descriptors, which are the rhythm's from now on: one may be for both. What is heard of several engines
        by one of them comes in whole counts.
        """
        self._heard, self._told = tuple(heard), tuple(told)
        self._unread = dict.fromkeys(self._heard, b"")
        self._poll = select.epoll()
        for end in {*self._heard, *self._told}:
            os.set_blocking(end, False)
        for end in self._heard:
            self._poll.register(end, select.EPOLLIN)
        self._taken = self._asked = 0

    def fileno(self) -> int:
        """Readable once others have said something: then ``listen``."""
        return self._poll.fileno()

    @property
    def behind(self) -> bool:
        """Whether others have taken a step that this engine has not."""
        return self._taken < self._asked

    def take(self) -> None:
        """This engine is about to take a step."""
        self._taken += 1
        for other in self._told:
            with suppress(ConnectionError):  # one that is gone takes this engine along, as soon as that is known
                os.write(other, _COUNT.pack(self._taken))

    def listen(self) -> None:
        """Hear how many steps the others have taken."""
        while ready := self._poll.poll(0):
            for end, _ in ready:
                self._hear(end)

    def _hear(self, end: int) -> None:
        try:
            said = os.read(end, _MOST)
        except ConnectionError:
            said = b""
        if not said:
            self._poll.unregister(end)
            return
        said = self._unread[end] + said
        whole = len(said) - len(said) % _COUNT.size
        self._unread[end] = said[whole:]
        self._asked = max(self._asked, *(count for (count,) in _COUNT.iter_unpack(said[:whole])), 0)

    def close(self) -> None:
        """Say and hear nothing more. May be called again."""
        self._poll.close()
        every, self._heard, self._told = {*self._heard, *self._told}, (), ()
        for end in every:
            os.close(end)


class Pipes:
    """Where the engines of a machine meet: in a folder with a pipe for each, which all others write to."""

    def __init__(self, replicas: int) -> None:
        self._folder = PrivateFolder()
        for number in range(replicas):
            os.mkfifo(_pipe(self._folder.path, number), 0o600)

    @property
    def address(self) -> str:
        return str(self._folder.path)

    def close(self) -> None:
        self._folder.remove()


def open_pipes(topology: Topology) -> Rhythm:
    """The rhythm of a replica whose others are on this machine."""
    pipes = [_pipe(Path(topology.meeting), number) for number in range(topology.data)]
    # for reading, too: then there is always a reader, and opening needs nobody else
    every = [os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for pipe in pipes]
    return Rhythm([every.pop(topology.replica)], every)


def _pipe(folder: Path, number: int) -> Path:
    return folder / f"steps-{number}"
