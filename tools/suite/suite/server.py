"""``lsv serve`` as a process that a test starts, with its log in a file."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import openai

from lsv.settings import environment_with
from lsv_base.processes.ports import free_port
from suite.processes import children_of

CHOSEN = ("LSV_PLATFORM", "LSV_EMULATE", "LSV_HPU_SKIP_WARMUP")
"""With these set, all of this folder runs on that platform: see ``make test-emulated``."""


class Server:
    """An ``lsv serve`` process with its log in a file, or in the descriptor ``output``.

    Of lsv's own and vLLM's environment variables it sees ``variables`` alone.
    """

    def __init__(
        self, log: Path, *arguments: str, output: int | None = None, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.port, self.log = free_port(), log
        command = [sys.executable, "-m", "lsv", "serve", *arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        environment = {
            name: value
            for name, value in environment_with({}).items()
            if name in CHOSEN or not name.startswith(("LSV_", "VLLM_"))
        } | dict(variables)
        self._clients: dict[str, openai.OpenAI] = {}
        with log.open("wb") as file:
            target = file.fileno() if output is None else output
            self.process = subprocess.Popen(command, stdout=target, stderr=subprocess.STDOUT, env=environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client with these options, one for all tests; ``stop`` closes it."""
        key = repr(sorted(options.items()))
        if key not in self._clients:
            given = {"api_key": "EMPTY", "max_retries": 0, **options}
            self._clients[key] = openai.OpenAI(base_url=f"{self.url}/v1", **given)
        return self._clients[key]

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read()

    def wait_until_ready(self, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the server ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}"
                )
            try:
                if self.get("/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"the server was not ready in {seconds} s:\n{self.log.read_text()[-4000:]}")

    def close_clients(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    def engine_pid(self) -> int:
        """The process that runs the model, or the first of them."""
        engines = children_of(self.process.pid, "lsv.engine.main")
        assert engines, "the server has no engine process"
        return engines[0]

    def stop(self, how: signal.Signals = signal.SIGTERM, seconds: float = 30.0) -> int:
        self.close_clients()
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
