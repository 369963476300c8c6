"""The other end of a channel, which may tell why it ends."""

from __future__ import annotations

import socket
import time
from typing import Any, Generic

from lsv_base.errors import LsvError, from_record
from lsv_base.processes.wire import Channel, Failed, Received, Sent


class Peer(Generic[Sent, Received]):
    """A process behind a socket. ``receives`` is the union of what it sends; its last message may be ``Failed``."""

    def __init__(self, end: socket.socket, receives: Any) -> None:
        self.channel: Channel[Sent, Received | Failed] = Channel(end, receives | Failed)

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
