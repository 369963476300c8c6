"""What the commands of every day cost: nothing heavy is imported to show help or list plugins."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "sanic", "gradio", "huggingface_hub", "prompt_toolkit")
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
        "models --json",
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


WORKER = """
import sys
def print_imported(*names):
    print([name for name in names if name in sys.modules])

import lsv_runtime.worker.remote
print_imported("torch")
import torch, lsv_runtime.worker.worker
from lsv_runtime.emulation.recording import Recording
with Recording().capture():
    torch.ones(2) + 1
print_imported("torch._dynamo", "torch._inductor", "sympy", "transformers")
"""


def test_a_worker_imports_no_compiler() -> None:
    """A rank's process would start a second later with torch's, emulated devices that capture steps included.

    Nor does it import torch before ``main`` has turned garbage collection off.
    """
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n[]\n"


@pytest.mark.row("F-978")
@pytest.mark.parametrize("folder", [".", "core", "plugins/cpu"])
def test_it_runs_wherever_it_is_started(folder: str) -> None:
    """Also where its own source lies."""
    command = [sys.executable, "-m", "lsv", "--version"]
    done = subprocess.run(command, cwd=ROOT / folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.row("F-968")
def test_all_models_are_for_one_transformers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    (own,) = {one for one in wanted if re.match(r"transformers\b", one)}
    assert "==" not in own
