"""A stranger's plugin, installed into a scratch folder, and ``lsv`` run over it in a process of its own."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
READY = "lsv is ready on "
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``lsv-sample`` is installed in."""
    return _install("lsv-sample", tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def quota(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``lsv-quota`` is installed in."""
    return _install("lsv-quota", tmp_path_factory.mktemp("site"))


def _install(package: str, target: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    where = ["--no-build-isolation", "--no-index", "--target", str(target), str(HERE / package)]
    subprocess.run([*pip, *where], check=True, timeout=120, capture_output=True)
    return target


@pytest.fixture
def run() -> Run:
    """Run Python with folders on its path and no settings from outside."""

    def start(*arguments: str, path: tuple[Path, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True, text=True, timeout=240, env=clean_environment(path, **variables), check=False,
        )  # fmt: skip

    return start


class Server:
    """``lsv serve`` in a process of its own; ``log`` holds what it wrote, once it has ended."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address
        self.log = ""

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.address + path, data, timeout=60) as response:
            return json.load(response)


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    """``with serve(model, path=…, VARIABLE=…) as server``."""

    @contextmanager
    def running(model: str, *, path: tuple[Path, ...], **variables: str) -> Iterator[Server]:
        log = tmp_path / "server.log"
        command = [sys.executable, "-m", "lsv", "serve", model, "--platform", "cpu", "--port", "0"]
        environment = clean_environment(path, OMP_NUM_THREADS="1", **variables)
        with log.open("w") as errors, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process:  # fmt: skip
            try:
                ready = next((line for line in process.stdout if line.startswith(READY)), None)
                assert ready is not None, log.read_text()[-3000:]
                server = Server(process, ready.removeprefix(READY).strip())
                yield server
            finally:
                process.terminate()
                process.communicate(timeout=60)
        server.log = log.read_text()

    return running


def clean_environment(path: tuple[Path, ...], **variables: str) -> dict[str, str]:
    """No settings from outside, and folders on Python's path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LSV_", "VLLM_", "PYTEST_"))}
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "200", **variables}
