"""What holds for every test."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

# What make fuzz runs the machines with.
settings.register_profile("fuzz", max_examples=500)

# Triton's interpreter multiplies with numpy, and OpenBLAS's kernels for AVX2 give a row other bits at another place in
# a matrix, which no GPU does. Its kernels for AVX do not; numpy reads this when it is first imported.
os.environ["OPENBLAS_CORETYPE"] = "Sandybridge"


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers whichever ran before it; tests without torch stay without."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
