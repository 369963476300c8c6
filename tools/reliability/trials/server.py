"""A real server under trial: ``lsv serve`` on a free port, its log in a file, its processes under watch."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx2

from lsv_base.processes.ports import free_port
from lsv_base.processes.process import Process
from lsv_bench.server import Health
from trials.processes import descendants

_START_SECONDS = 180.0
_STOP_SECONDS = 60.0
_STAT = re.compile(r"^vllm:(num_requests_running|num_requests_waiting|gpu_cache_usage_perc)\{[^}]*\} (\S+)$", re.M)
_FAULT = re.compile(r"^Traceback \(most recent call last\)|Task exception was never retrieved", re.M)


class TrialServer:
    """``lsv serve`` with these arguments; use it in a ``with`` block, which ends it.

    It prints to ``output``, a descriptor, where one is given, and otherwise to the file ``log``.
    """

    def __init__(self, *arguments: str, log: Path, output: int | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log, self._output = log, output
        self._command = [
            *(sys.executable, "-m", "lsv", "serve", *arguments),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]
        self._health = Health(self.url)
        self._process: Process | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as file:
            output = file.fileno() if self._output is None else self._output
            self._process = Process(self._command, own_group=True, stdout=output, stderr=subprocess.STDOUT)
        try:
            self.wait_until_ready(_START_SECONDS)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end()

    @property
    def process(self) -> Process:
        assert self._process is not None, "the server has not been started"
        return self._process

    def stop(self) -> int | None:
        """Ask it to end, as an operator does; its exit code, None when it did not end and was killed."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(_STOP_SECONDS)
        self.process.end()
        return code

    def wait_until_ready(self, seconds: float) -> float:
        """How long it took. Raises ``TimeoutError``; ``Unavailable`` when its engine is dead for good."""
        return wait_until(lambda: self._health() is None or self._ended(), seconds, "the server is not ready")

    def processes(self) -> dict[int, str]:
        """Its processes and what each is: ``api``, ``engine``, ``media`` or ``other``."""
        return {self.process.pid: "api", **descendants(self.process.pid)}

    def find(self, kind: str) -> list[int]:
        return [pid for pid, name in self.processes().items() if name == kind]

    def stats(self) -> dict[str, float]:
        """Requests running and waiting, and the share of the KV cache in use, as /metrics shows them."""
        text = httpx2.get(f"{self.url}/metrics", timeout=30).text
        return {name: float(value) for name, value in _STAT.findall(text)}

    def faults(self) -> int:
        """Tracebacks in the log: errors nobody expected."""
        return len(_FAULT.findall(self.log.read_text(encoding="utf-8", errors="replace")))

    def _ended(self) -> bool:
        if not self.process.running:
            raise RuntimeError(f"the server {self.process.how_it_ended()}; its log is {self.log}")
        return False


def wait_until(done: Callable[[], bool], seconds: float, otherwise: str) -> float:
    """Look until it is done; how long it took. Raises ``TimeoutError``."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{otherwise} after {seconds:g} s")
        time.sleep(0.05)
    return time.monotonic() - began
