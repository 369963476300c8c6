"""The README's script for answers of a given form runs as it stands, against lsv-demo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("server")

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.row("F-155")
def test_an_answer_is_parsed_into_a_model(server):
    section = TEXT.partition("## Answers of a given form")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    code = code.replace("http://localhost:8000", server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "name='Mira' job='baker' town='Lorn'"
