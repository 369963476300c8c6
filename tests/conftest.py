"""What holds for every test."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

# Triton's interpreter multiplies with numpy, and OpenBLAS's kernels for AVX2 give a row other bits at another place in
# a matrix, which no GPU does. Its kernels for AVX do not; numpy, which torch brings, reads this when it is imported.
os.environ["OPENBLAS_CORETYPE"] = "Sandybridge"

import torch

# Without a GPU, Triton's kernels are interpreted. Triton reads this when it is imported, which transformers does too.
_GPU = torch.cuda.is_available() or torch.xpu.is_available()
os.environ.setdefault("TRITON_INTERPRET", "0" if _GPU else "1")

# What make fuzz runs the machines with.
settings.register_profile("fuzz", max_examples=500)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def old_objects() -> None:
    """Engines collect garbage when they close: not again among modules and tests, which stay."""
    gc.collect()
    gc.freeze()
