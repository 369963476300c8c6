"""Programs written for vLLM, on lsv through ``compat/vllm``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lsv.settings import environment_with
from suite.libraries import LIBRARIES

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "compat" / "vllm"
Run = Callable[..., str]

SECONDS = 900
"""Importing some of the libraries takes ten seconds of CPU, which is a minute or more on a busy machine."""


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in, imported from its sources; nothing of it stays."""
    monkeypatch.syspath_prepend(str(SOURCES))
    finders = list(sys.meta_path)
    yield importlib.import_module("vllm")
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(file, *arguments, VARIABLE="value")`` runs a program in the environment of the libraries, without network,
    and returns what it prints.
    """
    assert LIBRARIES is not None
    python = LIBRARIES / "env" / "bin" / "python"

    def run(*line: object, **variables: str) -> str:
        environment = {
            name: value for name, value in environment_with(variables).items() if name != "LSV_TEST_LIBRARIES"
        }
        environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
        done = subprocess.run(
            [str(python), *map(str, line)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    return run


def last_json(printed: str) -> Any:
    """What the last line of a program's output says."""
    return json.loads(printed.splitlines()[-1])
