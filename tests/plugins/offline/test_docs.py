"""The scripts in docs/offline.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[3] / "docs" / "offline.md").read_text(encoding="utf-8")
SCRIPTS = [script for script in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "lsv import" in script]


@pytest.mark.row("F-320", "F-356")
@pytest.mark.parametrize(
    "script", SCRIPTS, ids=["llm", "prefixes", "beams", "processors", "arguments", "steps", "async"]
)
def test_scripts_run(script: str):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
