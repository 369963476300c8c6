"""The commands and the script in docs/adapters.md run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import lsv_demo
from lsv_testing.adapters import linear_layers, write_adapter

pytestmark = pytest.mark.xdist_group("adapters")

TEXT = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")
CHECKPOINT = Path(lsv_demo.__file__).parent / "checkpoint"


def scripts(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("pirate", "other"):
        write_adapter(folder / name, CHECKPOINT, list(linear_layers(CHECKPOINT, ("tower",))), spread=0.05)
    return folder


def run(*command: str, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands(own_server, folder: Path) -> None:
    serve, ask, change = scripts("bash")
    words = shlex.split(serve.replace("$ADAPTERS", str(folder)).replace("\\\n", " "))
    assert words[:2] == ["lsv", "serve"]
    assert words[-2:] == ["--port", "$PORT"]
    server = own_server(*words[2:-2])
    server.wait_until_ready()
    variables = {"LSV_URL": server.url, "ADAPTERS": str(folder)}
    assert "Arr, Mira lives in Lorn, matey!" in run("bash", "-c", ask, **variables)
    assert run("bash", "-c", change, **variables).count("Success: LoRA adapter 'other'") == 2
    server.stop()


def test_the_script(folder: Path) -> None:
    (script,) = scripts("python")
    assert run(sys.executable, "-c", script, ADAPTERS=str(folder)).strip() == "2"
