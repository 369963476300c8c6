"""A real server on the demo model, started once for all tests that share it."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from lsv.errors import ConfigError
from lsv.processes.ports import free_port

CHOSEN = ("LSV_PLATFORM", "LSV_EMULATE", "LSV_HPU_SKIP_WARMUP")
"""With these set, all of this folder runs on that platform: see ``make test-emulated``."""

EMULATED = "LSV_EMULATE" in os.environ
"""Whether devices are emulated: what their steps take says nothing of real ones."""

EIGHT_BITS = "fp8" if os.environ.get("LSV_PLATFORM") == "hpu" else "int8"
"""The 8-bit KV cache of tests: Gaudi has one of floats alone, plain torch one of integers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("LSV_PLATFORM") != "torch":
        return
    for item in items:
        if item.get_closest_marker("two_ranks"):
            item.add_marker(pytest.mark.skip(reason="the platform computes on one device"))


_Report = Generator[None, pytest.TestReport, pytest.TestReport]

_REFUSED = re.compile(
    r"takes flat batches, and platform \w+ makes padded ones|recurrent layers, and platform \w+ makes padded batches"
)
"""What platforms say of options and models that others have."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> _Report:
    """A test of what an emulated platform refuses by name is skipped there."""
    report = yield
    error = call.excinfo and call.excinfo.value
    if EMULATED and isinstance(error, ConfigError) and (found := _REFUSED.search(error.message)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {found[0]}")
    return report


def beep(hertz: int, seconds: float = 1.0) -> bytes:
    """A tone, as a WAV file."""
    samples = (8000 * np.sin(2 * np.pi * hertz * np.arange(int(16000 * seconds)) / 16000)).astype(np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", "not compressed"))
        out.writeframes(samples.tobytes())
    return file.getvalue()


class Server:
    """An ``lsv serve`` process with its log in a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.port, self.log = free_port(), log
        command = [sys.executable, "-m", "lsv", "serve", *arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in CHOSEN or not name.startswith(("LSV_", "VLLM_"))
        }
        self._clients: dict[str, openai.OpenAI] = {}
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

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
        """The process that runs the model: the server's child whose command line names the engine loop."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and b"lsv.engine" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
        raise AssertionError("the server has no engine process")

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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model, served once per test process."""
    running = Server(tmp_path_factory.mktemp("server") / "server.log")
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[type[Server]]:
    """A factory of servers for tests that break them; whatever is left is killed."""
    made: list[Server] = []

    class Own(Server):
        def __init__(self, *arguments: str) -> None:
            super().__init__(tmp_path / f"server{len(made)}.log", *arguments)
            made.append(self)

    yield Own
    for left in made:
        left.close_clients()
        if left.process.poll() is None:
            left.process.kill()
            left.process.wait()
