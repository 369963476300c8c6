"""What holds for every test."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers whichever ran before it; tests without torch stay without."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
