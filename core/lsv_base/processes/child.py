"""A Python module as a child process that talks to its parent and does not outlive it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lsv_base.processes.peer import Peer
from lsv_base.processes.process import Process
from lsv_base.processes.wire import Received, Sent

_FIRST_SECONDS = 60.0
"""For a first message that is more than a socket holds: a process reads it once Python and its imports are there."""


class HasDescriptor(Protocol):
    """A socket, or anything else with a descriptor."""

    def fileno(self) -> int: ...


Inherited = HasDescriptor | int
"""An inherited file: an object with a descriptor, or the descriptor itself."""


class Child(Process, Peer[Sent, Received]):
    """``python -m module FD… FD PARENT``, and the channel to it; its counterpart there is ``lifeline.connect``.

    The descriptors are those of ``inherited`` and the module's end of the channel; PARENT is this process's id.
    ``first`` is the first message it gets. ``receives`` is the union of what it sends; any child may also send
    ``Failed`` as its last message. It dies with the thread that makes this object. All else is as in ``Process``.
    """

    def __init__(
        self,
        module: str,
        first: Sent,
        receives: Any,
        *,
        inherited: Sequence[Inherited] = (),
        own_group: bool = False,
        stdout: int | None = None,
        stderr: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        Peer.__init__(self, ours, receives)
        descriptors = [end if isinstance(end, int) else end.fileno() for end in (*inherited, theirs)]
        command = [sys.executable, "-m", module, *map(str, descriptors), str(os.getpid())]
        try:
            with theirs:
                Process.__init__(
                    self, command, inherited=descriptors, own_group=own_group, stdout=stdout, stderr=stderr,
                    environment=environment,
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        with suppress(OSError):  # it ended at once, which the next receive will tell
            self.channel.send(first, _FIRST_SECONDS)

    def end(self, seconds: float = 0.0) -> None:
        """Close the channel, which asks it to end; kill it after ``seconds``. May be called again."""
        self.channel.close()
        Process.end(self, seconds)
