"""Core runs where torch is not installed: commands, API processes, the tests of requests, KV cache and scheduler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lsv.settings import environment_with

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""Python runs this first in each process: these packages can't be found, as where they are not installed."""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    environment = environment_with({"PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""})

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

    return run


def test_torch_is_absent(run: Run) -> None:
    assert "No module named 'torch'" in run("-c", "import torch").stderr


@pytest.mark.parametrize("words", ["--help", "serve --help", "plugins"])
def test_commands_run(run: Run, words: str) -> None:
    done = run("-m", "lsv", *words.split())
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_says_what_is_missing(run: Run) -> None:
    done = run("-m", "lsv", "serve", "lsv-demo", "--port", "0")
    assert done.returncode
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "No module named 'torch'" in done.stderr


@pytest.mark.parametrize(
    "folders",
    [("tests/core/request", "tests/core/kv", "tests/core/scheduler"), ("tests/plugins/api/test_chat.py",)],
    ids=["core", "api"],
)
def test_tests_pass(run: Run, folders: tuple[str, ...]) -> None:
    """Without the conftest of all tests, which seeds torch, and without the tests that draw histories at random."""
    apart = f"--confcutdir={ROOT / Path(*Path(folders[0]).parts[:3])}"
    marks = "not slow and not gpu and not machine"
    done = run("-m", "pytest", "-n0", "-p", "no:cacheprovider", apart, "-m", marks, *folders)
    assert done.returncode == 0, done.stdout[-4000:]
