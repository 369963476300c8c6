"""The commands and scripts in docs/structured-output.md run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("server")

TEXT = (Path(__file__).parents[2] / "docs" / "structured-output.md").read_text(encoding="utf-8")


def scripts(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def run(server, *command: str) -> str:
    environment = os.environ | {"LSV_URL": server.url}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands(server):
    schema, tag = (json.loads(run(server, "bash", "-c", command)) for command in scripts("bash"))
    assert set(json.loads(schema["choices"][0]["message"]["content"])) == {"name", "age"}
    assert "message" in tag["choices"][0], tag


def test_the_scripts(server):
    parsed, offline = scripts("python")
    assert "city=" in run(server, sys.executable, "-c", parsed)
    assert run(server, sys.executable, "-c", offline).strip() in ("positive", "negative")
