"""Online formats of small codes: the weights they decode to, from the definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_quant.online import online_coded
from lsv_quant.online.online_coded import Round, to_mxfp4, to_nf4
from lsv_quant.tables import E2M1, EXACT_NF4, NF4, nearest
from lsv_runtime.nn.linear import Column
from lsv_testing.tensors import TensorsSource, fill_module, place


def decoded(name: str, weight: torch.Tensor) -> torch.Tensor:
    w = place(quantizer=getattr(online_coded, f"make_{name}")({}))
    column = Column.even(w, ("0",), weight.shape[1], weight.shape[0])
    layer: Any = fill_module(column, w, TensorsSource({"0.weight": weight})).linear
    return layer.weight()


def test_uint4_has_sixteen_even_steps_in_each_group() -> None:
    steps, low = torch.tensor([0.25, 2.0]), torch.tensor([-1.0, 3.0])
    counts = torch.arange(32) % 16
    weight = (counts * steps[:, None] + low[:, None]).flatten()[None]
    assert torch.equal(decoded("asym_int4_32", weight), weight)
    assert torch.equal(decoded("asym_int4_32", torch.full((3, 40), 0.7)[:, :32]), torch.full((3, 32), 0.7))
    assert decoded("asym_int4_32", torch.zeros(2, 64)).count_nonzero() == 0


def test_uint4_is_nearer_than_plain_rounding() -> None:
    weight = torch.randn(300, 64)
    low, high = weight.amin(dim=1, keepdim=True), weight.amax(dim=1, keepdim=True)
    plain = ((weight - low) / (high - low) * 15).round() / 15 * (high - low) + low
    found = decoded("asym_int4_64", weight)
    assert (found - weight).square().sum() < 0.95 * (plain - weight).square().sum()


def test_int8_scales_an_output() -> None:
    weight = torch.randn(20, 70)
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    assert torch.equal(decoded("int8_weight_only", weight), (weight / scales).round() * scales)


def mxfp4(block: list[float]) -> list[float]:
    """A block by section 6.3 of the specification, or with twice the scale, in Python's own arithmetic."""
    scale = 2.0 ** (math.floor(math.log2(max(abs(v) for v in block))) - 2)
    codings = [mxfp4_scaled(block, scale), mxfp4_scaled(block, 2 * scale)]
    return min(codings, key=lambda found: weighted_error(found, block))


def mxfp4_scaled(block: list[float], scale: float) -> list[float]:
    values, found = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], []
    for value in block:
        size = min(abs(value) / scale, 6.0)
        code = min(range(8), key=lambda n: (abs(values[n] - size), n % 2))
        found.append(math.copysign(values[code] * scale, value))
    return found


def weighted_error(found: list[float], block: list[float]) -> float:
    return math.fsum(abs(value) ** 3 * (one - value) ** 2 for one, value in zip(found, block, strict=True))


def test_mxfp4_follows_the_specification_with_the_better_of_two_scales() -> None:
    weight = torch.randn(4, 64)
    weight[0, :32] = torch.arange(32) / 4  # among them all numbers halfway between two values
    weight[1, 32:] *= 1e-6
    weight[2] = 0.25
    weight[2, ::32] = 7.9  # which the first scale clips to 6
    wanted = [mxfp4(row[:32]) + mxfp4(row[32:]) for row in weight.double().tolist()]
    assert torch.equal(decoded("mxfp4", weight), torch.tensor(wanted))
    assert decoded("mxfp4", weight)[2, 0] == 8
    assert decoded("mxfp4", torch.zeros(2, 64)).count_nonzero() == 0


def test_mxfp4_takes_the_specifications_scale_where_the_next_is_as_good() -> None:
    weight = torch.tensor([4.0, -2.0, 1.0, 0.0]).repeat(2, 8)
    codes, scales = to_mxfp4(weight)
    assert scales.tolist() == [1.0, 1.0]
    assert torch.equal(torch.tensor(E2M1)[codes.int()], weight)


@pytest.mark.parametrize("freedom", [2.0, 100.0])
def test_mxfp4_loses_less_than_with_the_specifications_scale(freedom: float) -> None:
    weight = torch.distributions.StudentT(freedom).sample((400, 32))
    found = decoded("mxfp4", weight)
    first = torch.tensor(
        [mxfp4_scaled(row, 2.0 ** (math.floor(math.log2(max(map(abs, row)))) - 2)) for row in weight.double().tolist()]
    )
    errors = [cubic_error(one, weight) for one in (found, first)]
    assert (errors[0] <= errors[1] * 1.00001).all()
    assert (errors[0] < 0.9 * errors[1]).sum() > 40


def cubic_error(found: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """By rows."""
    return (weight.abs() ** 3 * (found - weight).square()).sum(dim=1)


@pytest.mark.parametrize("round", [to_mxfp4, to_nf4])
def test_a_group_that_is_not_finite_has_such_a_scale(round: Round) -> None:
    x = torch.ones(3, 32)
    x[1, 2], x[2, 7] = torch.nan, -torch.inf
    assert round(x)[1].isfinite().tolist() == [True, False, False]


def test_nf4_scales_sixteen_quantiles_by_the_largest_of_a_block() -> None:
    codes = torch.randint(0, 16, (6, 128))
    codes[:, 0], codes[:, 64] = 15, 0  # a block's largest weight has the value 1 or -1
    scales = torch.rand(6, 2).repeat_interleave(64, dim=1)
    weight = torch.tensor(NF4)[codes] * scales
    assert torch.equal(decoded("nf4", weight), weight)
    exact = torch.tensor(EXACT_NF4)
    assert ((torch.tensor(NF4) - exact).abs() <= exact.abs() / 256).all()


@pytest.mark.parametrize("freedom", [2.0, 100.0])
def test_nf4_loses_less_than_with_the_largest_weight_as_the_scale(freedom: float) -> None:
    weight = torch.distributions.StudentT(freedom).sample((400, 64))
    largest = weight.abs().amax(dim=1, keepdim=True)
    first = torch.tensor(NF4)[nearest(weight / largest, NF4).int()] * largest
    errors = [cubic_error(one, weight) for one in (decoded("nf4", weight), first)]
    assert (errors[0] <= errors[1]).all()
    assert (errors[0] < 0.9 * errors[1]).sum() > 40


def test_nf4_keeps_zeros_and_what_is_next_to_nothing() -> None:
    assert decoded("nf4", torch.full((2, 64), 1e-35)).count_nonzero() == 0
    codes, scales = to_nf4(torch.zeros(2, 64))
    assert scales.tolist() == [1.0, 1.0]
    assert torch.tensor(NF4)[codes.int()].count_nonzero() == 0


def test_nf4_takes_the_largest_weight_where_others_are_as_good() -> None:
    weight = torch.tensor(NF4).repeat(1, 4) * 0.5
    assert to_nf4(weight)[1].tolist() == [0.5]


def test_the_nearest_value_wins() -> None:
    x = torch.tensor([-9.0, 0.49, 0.5, 0.51, 1.5, 2.5, 7.0])
    assert nearest(x, (0.0, 1.0, 2.0, 3.0)).tolist() == [0, 0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("name", ["asym_int4_64", "int8_weight_only", "mxfp4", "nf4"])
def test_weights_that_are_not_finite_are_refused(name: str) -> None:
    weight = torch.ones(2, 64)
    weight[1, 3] = torch.nan
    with pytest.raises(CheckpointError, match="holds weights that are not finite"):
        decoded(name, weight)
