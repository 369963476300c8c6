"""A server whose log is not read: the pipe fills up, and nothing else may be affected."""

from __future__ import annotations

import os
from pathlib import Path

import httpx2

from trials.server import TrialServer
from trials.table import Figure, at_most

_REQUESTS = 2000
"""Far more lines than the 64 KiB of a pipe hold."""
_SECONDS = 10.0


def try_blocked_log(out: Path) -> list[Figure]:
    """Requests that are not answered, and how the server ends on SIGTERM, with a full pipe for its log."""
    reader, writer = os.pipe()
    try:
        with TrialServer("lsv-demo", log=out / "blocked.log", output=writer) as server:
            silent = _count_silent(server.url)
            code = server.stop()
    finally:
        os.close(reader)
        os.close(writer)
    return [
        at_most(f"requests of {_REQUESTS} without an answer while the log is blocked", silent, 0),
        Figure("exit code after SIGTERM while the log is blocked", str(code), "0", code == 0),
    ]


def _count_silent(url: str) -> int:
    """How many requests got no answer. After the first failure the others are not tried."""
    with httpx2.Client(base_url=url, timeout=_SECONDS, trust_env=False) as http:
        for number in range(_REQUESTS):
            try:
                http.get("/live")
            except httpx2.HTTPError:
                return _REQUESTS - number
    return 0
