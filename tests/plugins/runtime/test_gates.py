"""Sigmoid and softplus: torch's numbers, and for each row the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from lsv_runtime import gates

FUNCTIONS = [(gates.sigmoid, torch.sigmoid), (gates.softplus, functional.softplus)]
EDGES = torch.tensor([-torch.inf, -1e30, -104.0, -20.0, -1e-8, 0.0, 1e-8, 20.0, 104.0, 1e30, torch.inf, torch.nan])

Function = Callable[[torch.Tensor], torch.Tensor]


def numbers(*shape: int) -> torch.Tensor:
    return 4 * torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("function", [one for one, _ in FUNCTIONS])
@pytest.mark.parametrize("width", [1, 4, 8, 24, 64])
def test_a_row_has_the_same_bits_in_any_batch(function: Function, width: int) -> None:
    x = numbers(40, width)
    alone = torch.cat([function(row[None]) for row in x])
    for rows in (2, 3, 8, 40):
        assert torch.equal(function(x[:rows]), alone[:rows])


@pytest.mark.parametrize(("function", "torchs"), FUNCTIONS)
def test_it_is_what_torch_computes(function: Function, torchs: Function) -> None:
    for x in (numbers(1000), EDGES):
        torch.testing.assert_close(function(x), torchs(x), rtol=1e-6, atol=1e-37, equal_nan=True)


def test_half_precision_is_rounded_once() -> None:
    x = numbers(1000).bfloat16()
    assert torch.equal(gates.sigmoid(x), torch.sigmoid(x.float()).bfloat16())


def test_the_argument_stays_as_it_is() -> None:
    x = numbers(10)
    before = x.clone()
    gates.sigmoid(x), gates.softplus(x)
    assert torch.equal(x, before)
