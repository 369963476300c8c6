"""A Python module as a child process that talks to its parent and does not outlive it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol

from lsv.errors import LsvError, from_record
from lsv.processes.process import Process
from lsv.processes.wire import Channel, Failed, Received, Sent

_FIRST_SECONDS = 60.0
"""For a first message that is more than a socket holds: a process reads it once Python and its imports are there."""


class Inherited(Protocol):
    """A socket, or anything else with a descriptor."""

    def fileno(self) -> int: ...


class Child(Process, Generic[Sent, Received]):
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
        self.channel: Channel[Sent, Received | Failed] = Channel(ours, receives | Failed)
        descriptors = [end.fileno() for end in (*inherited, theirs)]
        command = [sys.executable, "-m", module, *map(str, descriptors), str(os.getpid())]
        try:
            with theirs:
                super().__init__(
                    command, inherited=descriptors, own_group=own_group, stdout=stdout, stderr=stderr,
                    environment=environment,
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        with suppress(OSError):  # it ended at once, which the next receive will tell
            self.channel.send(first, _FIRST_SECONDS)

    def fileno(self) -> int:
        """The channel's, for selectors."""
        return self.channel.fileno()

    def send(self, message: Sent, seconds: float | None = None) -> None:
        """Raises ``OSError`` when it is gone, ``TimeoutError`` when it has not taken the message in ``seconds``."""
        self.channel.send(message, seconds)

    def receive(self, seconds: float | None = None) -> Received:
        """The next message. Raises the error it reports as its end.

        Raises ``EOFError`` when it is gone, ``TimeoutError`` after ``seconds``, ``ValueError`` for a frame that is not
        a message.
        """
        message = self.channel.receive(seconds)
        if isinstance(message, Failed):
            raise from_record(message.error)
        return message

    def reported_error(self, seconds: float) -> LsvError | None:
        """The error it reports as its end, waited for up to ``seconds``; any other message is dropped."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                self.receive(max(0.0, deadline - time.monotonic()))
        except LsvError as error:
            return error
        except (EOFError, OSError, ValueError):
            return None

    def end(self, seconds: float = 0.0) -> None:
        """Close the channel, which asks it to end; kill it after ``seconds``. May be called again."""
        self.channel.close()
        super().end(seconds)
