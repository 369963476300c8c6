"""The README's script for tools and schemas runs as it stands, against lsv-demo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("server")

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.row("F-155", "F-175")
def test_a_function_is_called_and_an_answer_parsed_into_a_model(server):
    section = TEXT.partition("## Tools, thoughts and schemas")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    code = code.replace("http://localhost:8000", server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "calculate {'expression': '3847 * 29'}",
        "3847 * 29 = 111563.",
        "name='Mira' job='baker' town='Lorn'",
    ]
