"""What the commands of every day cost: nothing heavy is imported to show help or list plugins."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "sanic", "gradio", "huggingface_hub")
SCRIPT = """
import json, sys
from lsv.cli.main import main
code = main({arguments!r})
print("MODULES", json.dumps([code, [name for name in {heavy!r} if name in sys.modules]]))
"""


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "plugins",
        "plugins --offers --json",
        "serve --help",
        "eval --help",
        "models --help",
        "new --help",
    ],
)
def test_light(command: str) -> None:
    script = SCRIPT.format(arguments=command.split(), heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    code, found = json.loads(done.stdout.rpartition("MODULES ")[2])
    assert code == 0, done.stderr
    assert found == []


def test_importing_lsv_is_light() -> None:
    heavy = (*HEAVY, "numpy", "tokenizers", "msgspec")
    script = f"import sys, lsv; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
