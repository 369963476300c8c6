"""A server that a benchmark starts itself, watches until it is ready, and ends again."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from urllib.parse import urlsplit

from lsv_base.errors import Unavailable
from lsv_base.processes.output import Output
from lsv_base.processes.process import Process

_LOOK_EVERY = 0.025
"""Seconds between looks at a server that starts: often enough for a tenth of a second, too rare to slow it down."""
_STOP_SECONDS = 30.0
_STDERR = 2
_TAIL = 5
"""Lines of its output that explain why a server ended."""

NOT_YET = "process"
"""The stage of a server that does not answer yet: the interpreter, its imports, the configuration."""


class OwnServer:
    """A command in a process group of its own; use it in a ``with`` block, which ends it.

    ``url`` is where it will answer, ending in ``/v1``. ``show_output`` lets it write to stderr.
    """

    def __init__(self, command: Sequence[str], url: str, *, show_output: bool = False) -> None:
        self._command = command
        self._url = url
        self._output = None if show_output else Output()
        self._process: Process | None = None

    def __enter__(self) -> OwnServer:
        try:
            self._process = Process(
                self._command,
                own_group=True,  # what the command starts ends with it
                stdout=self._output.fileno() if self._output else _STDERR,
                stderr=subprocess.STDOUT if self._output else None,
            )
        except OSError as cause:
            self.stop()
            raise Unavailable(f"the server can't be started: {cause}") from cause
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def wait_until_ready(self, timeout: float) -> dict[str, float]:
        """Seconds spent in each stage of the start; raises ``Unavailable`` when it ends or takes over ``timeout``."""
        look = Health(self._url)
        began = time.perf_counter()
        clock = Stages()
        while (stage := look()) is not None:
            now = time.perf_counter() - began
            clock.see(stage, now)
            if self._process is not None and not self._process.running:
                raise Unavailable(f"the server ended before it was ready{self._last_words()}")
            if now > timeout:
                raise Unavailable(f"the server was not ready after {timeout:g} s{self._last_words()}")
            time.sleep(_LOOK_EVERY)
        return clock.end(time.perf_counter() - began)

    def stop(self) -> None:
        """Ask it to end, by force after a while. May be called again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.end(_STOP_SECONDS)
        if self._output is not None:
            self._output.close()

    def _last_words(self) -> str:
        lines = self._output.last_lines(_TAIL) if self._output else ()
        return f": {' | '.join(lines)}" if lines else ""


class Stages:
    """How long each stage lasted: from when it was first seen to when another was."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._since = 0.0
        self._seconds: dict[str, float] = {}

    def see(self, stage: str, now: float) -> None:
        if stage != self._stage:
            self.end(now)
            self._stage, self._since = stage, now if self._seconds else 0.0

    def end(self, now: float) -> dict[str, float]:
        """Seconds by stage; a stage that came twice is summed up."""
        if self._stage is not None:
            self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
            self._stage = None
        return self._seconds


class Health:
    """Looks at a server: what it is doing while it starts, None once it is ready.

    Raises ``Unavailable`` for a server that says it is dead.
    """

    def __init__(self, url: str, fetch: Callable[[str], tuple[int, bytes] | None] | None = None) -> None:
        self._root = url.rstrip("/").removesuffix("/v1")
        self._fetch = fetch or _fetch

    def __call__(self) -> str | None:
        answer = self._fetch(f"{self._root}/health")
        if answer is not None and answer[0] == 404:  # not every server has it
            answer = self._fetch(f"{self._root}/v1/models")
        if answer is None:
            return NOT_YET
        status, body = answer
        if status == 200:
            return None
        return _read_stage(body) or "loading"


def _read_stage(body: bytes) -> str:
    """The stage in the JSON of ``/health``; empty where it says nothing of the kind."""
    try:
        states = json.loads(body)["models"]
        dead = next((state["error"] for state in states if state["state"] == "dead"), None)
        stages = [str(state["stage"]) for state in states if state["state"] != "ready"]
    except (ValueError, KeyError, TypeError):
        return ""
    if dead:
        raise Unavailable(f"the server's engine died: {dead}")
    return re.sub(r"\W", "_", stages[0]) if stages else ""


def _fetch(url: str) -> tuple[int, bytes] | None:
    """Status and body; None when nobody answers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=10)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
