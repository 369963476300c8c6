"""Servers that are really started by lines as users of vLLM have them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lsv_base.processes.ports import free_port

from .conftest import read_line

pytestmark = pytest.mark.slow

Serve = Callable[..., "Server"]


class Server:
    """``lsv serve lsv-demo`` with the options of a line."""

    def __init__(self, line: str, folder: Path) -> None:
        variables, arguments = read_line(line)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LSV_", "VLLM_"))}
        command = [sys.executable, "-m", "lsv", "serve", "lsv-demo", *arguments]
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**clean, **variables}, text=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait(self) -> str:
        """Where it listens."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("lsv is ready on "):
                return line.removeprefix("lsv is ready on ").strip()
        raise AssertionError(f"the server ended with {self.process.wait()}:\n{self.log[-4000:]}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(line: str) -> Server:
        servers.append(Server(line, tmp_path))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def ask(url: str, uds: str | None = None) -> dict[str, Any]:
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=uds) if uds else None, timeout=60) as http:
        answer = http.post(f"{url}/v1/completions", json={"prompt": "Once", "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("count", [1, 2])
def test_a_unix_socket_and_several_processes(serve: Serve, tmp_path: Path, count: int) -> None:
    path = tmp_path / "s"
    server = serve(f"vllm serve --uds {path} --api-server-count {count} --enable-log-requests --platform cpu")
    assert server.wait() == f"unix:{path}"
    assert ask("http://localhost", str(path))["choices"][0]["finish_reason"] == "length"
    assert "/v1/completions" in server.log
    server.stop()
    assert not path.exists()


def test_a_file_decides_about_logging_in_all_processes(serve: Serve, tmp_path: Path) -> None:
    log, file = tmp_path / "lsv.log", tmp_path / "logging.json"
    handlers = {"file": {"class": "logging.FileHandler", "filename": str(log)}}
    loggers = {"vllm": {"handlers": ["file"], "level": "INFO"}}
    file.write_text(json.dumps({"version": 1, "handlers": handlers, "loggers": loggers}))
    server = serve(
        f"VLLM_LOGGING_CONFIG_PATH={file} VLLM_RPC_TIMEOUT=1000 vllm serve --host 127.0.0.1 --port {free_port()} "
        "--kv-cache-memory-bytes 8M --generation-config vllm --swap-space 4 --max-model-len 256 --platform cpu"
    )
    ask(server.wait())
    assert "# CPU blocks:" in log.read_text(), "the engine's process"
    assert server.log.count("VLLM_RPC_TIMEOUT has no effect") == 1
    assert "# CPU blocks:" not in server.log


def test_the_line_for_an_intel_gpu(serve: Serve) -> None:
    line = f"""
        VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_WORKER_MULTIPROC_METHOD=spawn
        vllm serve --served-model-name N --dtype=float16 --enforce-eager --port {free_port()} --host 127.0.0.1
        --trust-remote-code --disable-sliding-window --gpu-memory-util=0.9 --no-enable-prefix-caching
        --max-num-batched-tokens=8192 --disable-log-requests --max-model-len=512 --block-size 64 --quantization fp8
        -tp=1 --platform xpu --emulate --num-gpu-blocks-override 64
    """
    assert ask(serve(" ".join(shlex.split(line))).wait())["model"] == "N"
