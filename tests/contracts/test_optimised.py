"""No check of input is an assert: with asserts removed, what must be refused still is."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKS = (
    "tests/plugins/api/test_access.py",
    "tests/core/request/test_params.py",
    "tests/core/engine/test_admission.py",
    "tests/plugins/runtime/weights/test_checkpoint.py",
)
# schemathesis, where make fuzz has installed it, is itself lost without asserts
# a test of an assert: one about a bug of ours
OURS = "tests/core/request/test_params.py::test_exactly_one_kind_of_params"
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "--assert=plain")


def test_checks_hold_without_asserts() -> None:
    """``pytest.raises`` is no assert: under ``-O`` such tests fail where nothing is refused."""
    command = [sys.executable, "-O", "-m", "pytest", *OPTIONS, "--deselect", OURS, *CHECKS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
