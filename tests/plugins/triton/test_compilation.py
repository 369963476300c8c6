"""Kernels compiled for GPUs that are not there: the interpreter lets pass a variable that changes its type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_kernels.py")


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "floats"), [("80", "fp32"), ("90", "bf16"), ("90", "fp16")])
def test_kernels_compile_and_the_sampler_rounds_every_product(architecture: str, floats: str, tmp_path: Path) -> None:
    """Its instructions neither fuse a product with a sum, nor flush, nor approximate: no option had to say so."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), architecture, floats],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = json.loads(done.stdout)
    assert {name for name, inexact, fused, _ in kernels if inexact or fused} == set()
    weighing = {"find_best", "list_candidates", "draw", "describe"}
    assert {name for name, _, _, products in kernels if products} == weighing
