"""The engines of one machine that compute together with those of others, whose gang is at node 0."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lsv.engine.replicas.nodes.messages import Left, ToNode0, Waiting
from lsv.engine.supervision.gang import Fall
from lsv_base.errors import EngineDied, LsvError

Send = Callable[[ToNode0], object]


class Contingent:
    """What a machine's supervisors share in a ``Gang``'s place: node 0 is told and says when engines start and end.

    Any thread may call. Engines end when node 0 is lost, and wait for it, or for the next one, to start again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._send: Send | None = None
        self._waiting: dict[int, list[str]] = {}
        """What waits for a start, and is told there where to meet."""
        self._begun: set[int] = set()
        self._running: dict[int, Fall] = {}
        self._cause: LsvError = EngineDied("node 0 is gone")
        self.over = False
        """Whether there is no further start on this machine."""

    # What supervisors do, see ``Gang``

    def assemble(self, number: int) -> str | None:
        begun: list[str] = []
        with self._changed:
            self._waiting[number] = begun
            self._tell(Waiting(number))
            self._changed.wait_for(lambda: begun or self.over)
            return None if self.over else begun[0]

    def enter(self, number: int, fall: Fall) -> None:
        with self._changed:
            if number in self._begun:
                self._running[number] = fall
                return
        fall(self._cause)

    def leave(self, number: int, error: LsvError) -> None:
        with self._changed:
            self._begun.discard(number)
            self._running.pop(number, None)
            self._tell(Left(number, error.record()))

    def disband(self) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()

    # What node 0 does

    def attach(self, send: Send) -> None:
        """Node 0 is there, and is told by ``send``, which returns at once."""
        with self._changed:
            self._send = send
            for number in sorted(self._waiting):
                self._tell(Waiting(number))

    def detach(self, why: LsvError) -> None:
        """Node 0 is gone, or has ended: so do all engines."""
        with self._changed:
            self._send = None
            begun = tuple(self._begun)
        for number in begun:
            self.fall(number, why)

    def begin(self, number: int, meeting: str) -> None:
        """All are about to start: the engine of replica ``number`` is to."""
        with self._changed:
            if (begun := self._waiting.pop(number, None)) is not None:
                begun.append(meeting)
                self._begun.add(number)
                self._changed.notify_all()

    def fall(self, number: int, why: LsvError) -> None:
        """Another engine has ended, so that of replica ``number`` does."""
        with self._changed:
            self._cause = why
            self._begun.discard(number)
            fall = self._running.pop(number, None)
        if fall is not None:
            fall(why)

    def _tell(self, said: ToNode0) -> None:
        if self._send is not None:
            self._send(said)
