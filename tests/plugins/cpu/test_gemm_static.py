"""Coded layers whose rows become e4m3 by a stored scale, under each instruction set that this machine has."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import pytest
import torch

from lsv_cpu import native
from lsv_cpu.linear import PanelLinear
from lsv_runtime.weights.codebook import Codebook, to_nibbles
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_runtime.weights.static_coded import StaticCodedLinear
from suite.instruction_sets import RUNNABLE

NIBBLES = tuple(float(n) for n in range(-8, 8))
FP8 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
# Of the largest output or 1: a rounding of the result, and for float32 the sums' order.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(params=RUNNABLE, autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    found = native.load(request.param)
    if found is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr("lsv_cpu.linear.selected_library", lambda: found)
    found.lsv_set_team(2, None)
    yield found
    found.lsv_set_team(1, None)


def make_layer(
    codebook: Codebook, outputs: int, inputs: int, dtype: torch.dtype, scale: float, *, bias: bool = False
) -> StaticCodedLinear:
    added = torch.nn.Parameter(torch.randn(outputs).to(dtype), requires_grad=False) if bias else None
    linear = StaticCodedLinear(LinearLayer("q", "column", inputs, (outputs,), bias, dtype), codebook, added)
    finite = torch.tensor(codebook.table).isfinite().nonzero()[:, 0].to(torch.uint8)
    codes = finite[torch.randint(0, len(finite), (outputs, inputs))]
    groups, largest = codebook.groups(inputs), max(abs(value) for value in codebook.table if value == value)
    linear.hold(
        to_nibbles(codes) if codebook.bits == 4 else codes,
        (torch.rand(outputs, groups) + 0.5) / largest,
        torch.randn(outputs, groups) / 8 if codebook.offsets else None,
        torch.randperm(inputs).int() if codebook.ordered else None,
    )
    linear.keep("input_scale", torch.tensor([scale]))
    return linear


def packed(linear: StaticCodedLinear) -> PanelLinear:
    kernel = PanelLinear(linear, linear.spec())
    kernel.pack()
    return kernel


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    largest = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=TOLERANCE[got.dtype] * largest)


@pytest.mark.row("F-404")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_products(dtype: torch.dtype) -> None:
    """Of rows with numbers beyond the range and below its smallest, against the definition."""
    codings = itertools.product((FP8, NIBBLES), (0, 64), (False, True), (False, True))
    rows = itertools.cycle((1, 2, 5, 13, 33))
    for table, group, offsets, ordered in codings:
        linear = make_layer(Codebook(table, group, offsets, ordered), 70, 200, dtype, 0.02, bias=offsets)
        x = (torch.randn(next(rows), 200) * torch.logspace(-4, 1, 200)).to(dtype)
        rounded = (x.double() / linear.input_scale.double()).clamp(-448, 448).float().to(torch.float8_e4m3fn)
        meant = rounded.double() * linear.input_scale.double() @ linear.weight().double().T
        meant = meant if linear.bias is None else meant + linear.bias.double()
        exact = x.double() @ linear.weight().double().T
        found = packed(linear).forward(x)
        assert_near(found, meant)
        assert (found.double() - exact).abs().max() > 4 * TOLERANCE[dtype] * meant.abs().max()  # rounding is seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_number_is_rounded_as_torch_rounds(dtype: torch.dtype) -> None:
    """A layer with a single weight of 1 shows what its inputs become; the scale is a power of two, so exactly that."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    for scale in (0.25, 1.0, 8.0):
        linear = StaticCodedLinear(LinearLayer("q", "column", 1, (1,), False, dtype), Codebook(FP8), None)
        linear.hold(torch.tensor([[FP8.index(1.0)]], dtype=torch.uint8), torch.ones(1, 1))
        linear.keep("input_scale", torch.tensor([scale]))
        wanted = (every.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        found = packed(linear).forward(every[:, None])[:, 0]
        torch.testing.assert_close(found, wanted.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    kernel = packed(make_layer(Codebook(FP8), 72, 700, dtype, 0.01))
    x = torch.randn(60, 700).to(dtype)
    found = kernel.forward(x)
    assert torch.equal(found, torch.cat([kernel.forward(row) for row in x.split(1)]))


@pytest.mark.parametrize("bias", [False, True])
def test_an_identity_is_not_cut_off(bias: bool) -> None:
    """What absorbs a projection asks for its weights: ones may be far beyond the calibrated range."""
    linear = make_layer(Codebook(FP8), 40, 30, torch.float32, 0.0001, bias=bias)
    meant = linear.weight().T + (0 if linear.bias is None else linear.bias)
    torch.testing.assert_close(linear.unrounded(torch.eye(30)), meant)
    kernel = packed(linear)
    linear.use(kernel)
    torch.testing.assert_close(linear.unrounded(torch.eye(30)), meant)
