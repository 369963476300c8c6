"""A page whose server has ended waits a while for the next server, whose page replaces it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

WAIT_SECONDS = 600.0
"""How long a page waits for a server."""

_POLL_SECONDS = 1.0
_STOP_SECONDS = 5.0
_MODULE = b"lsv_webui.page"


def command(parent: int, port: int) -> list[str]:
    """The command line by which other processes recognise a page."""
    return [sys.executable, "-m", _MODULE.decode(), str(parent), str(port)]


def outlive(parent: int, server: str, stopped: threading.Event) -> None:
    """Return once ``stopped`` is set, or once the parent has ended and no server has answered for ``WAIT_SECONDS``."""
    while os.getppid() == parent:
        if stopped.wait(_POLL_SECONDS):
            return
    _wait_for_server(server, stopped)


def _wait_for_server(server: str, stopped: threading.Event) -> None:
    _let_go_of_output()
    last = time.monotonic()
    while not stopped.wait(_POLL_SECONDS) and time.monotonic() < last + WAIT_SECONDS:
        if _listens(server):
            last = time.monotonic()


def _let_go_of_output() -> None:
    """Close the output, because a program that reads the server's output waits until every process has closed it."""
    sink = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(sink, descriptor)
    os.close(sink)


def _listens(server: str) -> bool:
    place = urlsplit(server)
    try:
        socket.create_connection((place.hostname or "", place.port or 80), timeout=_POLL_SECONDS).close()
    except OSError:
        return False
    return True


def replace_orphans(port: int) -> None:
    """End this user's pages on a port whose servers have ended; returns once they are gone.

    Only finds them on systems with /proc. Elsewhere an orphan keeps its port until its wait has ended.
    """
    found = list(_find_orphans(port))
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while any(map(_is_orphan_of, found)) and time.monotonic() < deadline:
            time.sleep(0.05)


def is_held_by_orphan(port: int) -> bool:
    """Whether an orphaned page of this user has the port."""
    return any(_find_orphans(port))


def _find_orphans(port: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        if _is_orphan_of(int(entry.name), port):
            yield int(entry.name)


def _is_orphan_of(process: int, port: int | None = None) -> bool:
    """Whether a process is an orphaned page on that port. A dead process has no command line."""
    place = Path("/proc") / str(process)
    try:
        if place.stat().st_uid != os.getuid():
            return False
        words = (place / "cmdline").read_bytes().split(b"\0")
        parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        own, on = words[words.index(_MODULE) + 1 :][:2]
        return parent != int(own) and port in (None, int(on))
    except (OSError, ValueError):
        return False
