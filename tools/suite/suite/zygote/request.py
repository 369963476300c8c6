"""What a process tells its zygote about a command."""

from __future__ import annotations

import os
import resource
import signal
import socket

import msgspec

_MOST_BYTES = 1 << 17
_MOST_DESCRIPTORS = 64
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_STACK)


class Request(msgspec.Struct):
    """A command, and all that its process has from the one that asks for it."""

    words: list[str]
    """The module and its arguments."""
    folder: str
    environment: dict[str, str]
    descriptors: list[int]
    """The numbers that the descriptors sent along have in the process."""
    own_session: bool
    group: int
    """The process group to join, 0 for one of its own, -1 for the parent's."""
    ignored: list[int]
    """The signals that it ignores."""
    cores: list[int]
    limits: list[tuple[int, int, int]]
    """Which limit of ``setrlimit(2)``, the soft and the hard one."""

    def apply(self) -> None:
        """Take all of this on but the descriptors."""
        if self.own_session:
            os.setsid()
        elif self.group >= 0:
            os.setpgid(0, self.group)
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
        if signal.SIGINT not in self.ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.sched_setaffinity(0, self.cores)
        for which, soft, hard in self.limits:
            resource.setrlimit(which, (soft, hard))
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)


def ignored_signals() -> list[int]:
    """The signals that this process ignores and that Python does not ignore by itself."""
    own = {signal.SIGPIPE, signal.SIGXFSZ}
    return [number for number in signal.valid_signals() - own if signal.getsignal(number) is signal.SIG_IGN]


def own_limits() -> list[tuple[int, int, int]]:
    return [(which, *resource.getrlimit(which)) for which in _LIMITS]


def send(control: socket.socket, request: Request, descriptors: list[int]) -> None:
    """``control`` keeps messages apart: it is of type ``SOCK_SEQPACKET``."""
    socket.send_fds(control, [msgspec.msgpack.encode(request)], descriptors)


def receive(control: socket.socket) -> tuple[Request, list[int]] | None:
    """None once the other end is closed."""
    message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, _MOST_DESCRIPTORS)
    return (msgspec.msgpack.decode(message, type=Request), descriptors) if message else None
