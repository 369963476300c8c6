"""A zygote: it imports what processes of tests need, and forks one for each request."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from suite.processes import ZYGOTE
from suite.zygote.asker import Asker, Variables, Zygote, read_at_start
from suite.zygote.request import Request, receive


def main() -> None:
    """Import, then serve requests. ``start_zygote`` passes the arguments."""
    folder, control, imports, commands, _ = sys.argv[1:]
    for name in filter(None, imports.split(",")):
        import_module(name)
    sys.path.remove(folder)
    show_command([ZYGOTE])
    gc.collect()
    gc.freeze()  # collections of the processes need not look at what is imported, nor copy its memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to the zygote, too
    forker = Forker(read_at_start(os.environ), commands.split(","))
    run(forker.serve(socket.socket(fileno=int(control))))


def run(request: Request) -> None:
    """As ``python -m`` does."""
    show_command([sys.executable, "-m", *request.words])
    sys.argv = request.words
    sys.path[0] = request.folder
    module = request.words[0]
    if not hasattr(sys.modules.get(module), "__path__"):  # as a package is, whose __main__ is run
        sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Forker:
    """What a zygote does. ``commands`` are those for which its processes ask the zygotes beside them."""

    def __init__(self, imported_under: Variables, commands: Sequence[str]) -> None:
        self._imported_under, self._commands = imported_under, dict.fromkeys(commands, ())

    def serve(self, control: socket.socket) -> Request:
        """Fork a process for each request, and return in it. Exits once the other end is closed."""
        while found := receive(control):
            request, descriptors = found
            pid = fork_orphan()
            if pid == 0:
                control.detach()  # the object must not close its number, which another descriptor may get
                take_descriptors(descriptors, request.descriptors)
                request.apply()
                sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
                return self._fork_beside(request)
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(pid.to_bytes(8, "big"))
        os._exit(0)

    def _fork_beside(self, request: Request) -> Request:
        """Fork a zygote for what this process is going to start, while it has one thread and nothing but imports."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.detach()  # as above
            leave_only(theirs)
            return self.serve(theirs)
        theirs.close()
        Asker({self._imported_under: Zygote(ours)}, most=1, commands=self._commands).install()
        atexit.register(end_zygote, ours, pid)
        return request


def end_zygote(control: socket.socket, pid: int) -> None:
    """Not even a zombie is to outlive a process that ends by itself."""
    control.close()
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def fork_orphan() -> int:
    """Fork twice, so that the new process becomes a child of the subreaper; returns its id, and 0 in it."""
    reader, writer = os.pipe()
    between = os.fork()
    if between:
        os.close(writer)
        os.waitpid(between, 0)
        pid = int.from_bytes(os.read(reader, 8), "big")
        os.close(reader)
        return pid
    between = os.getpid()
    pid = os.fork()
    if pid:
        os.write(writer, pid.to_bytes(8, "big"))
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0002)
    return 0


def show_command(words: Sequence[str]) -> None:
    """Have ``ps`` and ``/proc`` show this command in place of the zygote's."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    if start:  # some sandboxes do not tell
        ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def take_descriptors(received: Collection[int], numbers: Collection[int]) -> None:
    """Give descriptors the numbers that the command expects, and close all others."""
    above = max(*numbers, *received) + 1
    apart = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    for descriptor, number in zip(apart, numbers, strict=True):
        os.dup2(descriptor, number)
    close_all_but(numbers)


def leave_only(control: socket.socket) -> None:
    """Close all other descriptors, and the standard streams: their readers wait until all copies are closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    close_all_but({0, 1, 2, control.fileno()})


def close_all_but(kept: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the folder's own descriptor is closed already
                os.close(int(name))
