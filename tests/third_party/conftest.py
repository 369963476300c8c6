"""A stranger's plugin, installed into a scratch folder, and ``lsv`` run over it in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``lsv-sample`` is installed in."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    where = ["--no-build-isolation", "--no-index", "--target", str(target), str(HERE / "lsv-sample")]
    subprocess.run([*pip, *where], check=True, timeout=120, capture_output=True)
    return target


@pytest.fixture
def run() -> Run:
    """Run Python with folders on its path and no settings from outside."""

    def start(*arguments: str, path: tuple[Path, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LSV_", "VLLM_"))}
        environment |= {"PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "200", **variables}
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=240, env=environment, check=False
        )

    return start
