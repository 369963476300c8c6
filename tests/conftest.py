"""What holds for every test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """What a platform exports for its libraries in one test is no setting of a user's in the next one."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
