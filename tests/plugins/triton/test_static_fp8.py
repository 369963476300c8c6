"""Products of weights with rows that become e4m3 by a stored scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lsv.offers import load_object
from lsv_quant.checkpoints import fp8_checkpoint
from lsv_quant.tables import E4M3, NIBBLES
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_runtime.weights.static_coded import StaticCodedLinear
from lsv_testing.ops import SpreadRanks
from lsv_testing.tensors import fill_module, place
from lsv_triton import plugin
from lsv_triton.gemm.linear import TritonLinear
from lsv_triton.gemm.moe import route_rows
from lsv_triton.gemm.product import float_product
from lsv_triton.gemm.rounding import round_by_scale

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy warns of what is not finite
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}
"""Of the largest output."""
NATIVE = 2**-12
"""Likewise: a Hopper GPU adds products of e4m3 with 13 bits behind the point of the largest."""
OFFERS = tuple(offer for offer in plugin.lsv_kernels() if offer.platform == "cuda")
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def make_layer(codebook: Codebook, outputs: int, inputs: int, dtype: torch.dtype, scale: float) -> StaticCodedLinear:
    bias = torch.nn.Parameter(torch.randn(outputs).to(dtype), requires_grad=False)
    linear = StaticCodedLinear(LinearLayer("q", "column", inputs, (outputs,), True, dtype), codebook, bias)
    if codebook.bits == 8:
        codes = (torch.randn(outputs, inputs) * 100).to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    groups = codebook.groups(inputs)
    offsets = torch.randn(outputs, groups) / 8 if codebook.offsets else None
    linear.hold(codes, torch.rand(outputs, groups) / 100, offsets)
    linear.keep("input_scale", torch.tensor([scale]))
    return linear


def packed(linear: StaticCodedLinear) -> TritonLinear:
    kernel = TritonLinear(linear, linear.spec())
    kernel.pack()
    return kernel


@pytest.mark.row("F-404")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("codebook", [Codebook(E4M3), Codebook(E4M3, 64), Codebook(NIBBLES, 32, offsets=True)])
def test_products(codebook: Codebook, dtype: torch.dtype, device: torch.device) -> None:
    """Some numbers are beyond the range of the scale, some below its smallest."""
    linear = make_layer(codebook, 40, 200, dtype, 0.02).to(device)
    x = (torch.randn(17, 200) * torch.logspace(-4, 1, 200)).to(device, dtype)
    wanted, exact = linear.reference(x).float(), linear.unrounded(x).float()
    kernel = packed(linear)
    found = kernel.forward(x)
    assert found.dtype == dtype
    tolerance = TOLERANCE[dtype] if kernel._stack.native is None else max(TOLERANCE[dtype], NATIVE)
    assert (found.float() - wanted).abs().max() <= tolerance * wanted.abs().max()
    assert (found.float() - exact).abs().max() > 2 * tolerance * exact.abs().max()  # rounding is seen
    assert torch.equal(kernel.forward(x[:1]), found[:1])


def test_codes_and_the_numbers_they_are_give_the_same_products(device: torch.device) -> None:
    """Codes are what a GPU with 8-bit floats multiplies; here they are decoded on the way."""
    linear = make_layer(Codebook(E4M3), 40, 200, torch.float16, 0.02).to(device)
    x = torch.randn(5, 200).to(device, torch.float16)
    kernel = packed(linear)
    weights = replace(kernel._stack.packed, form=replace(kernel._stack.packed.form, values="e4m3"))
    weights = replace(weights, weight=weights.weight.view(torch.uint8))
    codes = round_by_scale(x, weights.input_scales, torch.float8_e4m3fn)
    out = torch.empty(5, 40, dtype=torch.float16, device=device)
    float_product(codes, weights, out)
    torch.testing.assert_close(out, kernel.forward(x), rtol=0, atol=2**-9 * float(out.abs().max()))


def test_numbers_of_amd(device: torch.device) -> None:
    """e4m3fnuz has the bits of e4m3fn at half the value, one zero, and another code for what is no number."""
    x = torch.cat((torch.randn(3, 200) * 50, torch.tensor([-0.0, 0.0, -1e-9, 1e9, torch.nan]).repeat(3, 1)), dim=1)
    scale, where = torch.tensor([0.25]), device
    numbers = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    codes = round_by_scale(x.to(where), scale.to(where), torch.float8_e4m3fn).cpu()
    same = x.isfinite()
    assert torch.equal(codes[same], numbers.view(torch.uint8)[same])
    assert codes.view(torch.float8_e4m3fn).float().isnan().equal(x.isnan())
    halved = round_by_scale(x.to(where), scale.to(where), torch.float8_e4m3fnuz).cpu().view(torch.float8_e4m3fnuz)
    torch.testing.assert_close(halved.float() * 2, numbers.float(), rtol=0, atol=0, equal_nan=True)


def make_experts(w: Weights) -> MoE:
    return MoE(w, 64, 96, "silu", experts=5, top=2, normalise=True)


def test_experts_have_scales_of_their_own(device: torch.device) -> None:
    w, plain = (place(quantizer=fp8_checkpoint.make(STATIC), device=device) for _ in range(2))
    module, reference = make_experts(w), make_experts(plain)
    fill_module(reference, plain, DummySource(plain.declaration.slots))
    (line,) = bind(module, OFFERS, "cuda", lambda offer: load_object(offer.load))
    assert line.implementation.endswith("GroupedExperts"), line
    Filler(module, w.declaration.slots).fill(DummySource(w.declaration.slots), device)
    kernel: Any = module.kernel
    assert len(kernel._gate_up.packed.input_scales.unique()) == 5
    x = torch.randn(9, 64, device=device)
    assert_near(module(x), reference(x))


def test_experts_of_two_ranks_add_up(device: torch.device) -> None:
    ranks = SpreadRanks(make_experts, (1, 0, 0, 1, 0), OFFERS, quantizer=fp8_checkpoint.make(STATIC), device=device)
    assert (ranks.line.op, ranks.line.implementation) == ("moe.spread", "lsv_triton.gemm.moe:GroupedExperts")
    kernel: Any = ranks.modules[0].kernel
    assert {"gate_up.input_scales", "down.input_scales"} <= kernel.held_tensors(0).keys()
    x = torch.randn(19, 64, device=device)
    assert_near(ranks(x), ranks.reference(x))


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """A sum's last bit may carry one hidden number over half a step of e4m3, a sixteenth of one of 96 terms."""
    assert (found - wanted).abs().max() <= 2**-7 * wanted.abs().max()


def test_rows_of_experts_elsewhere_are_left_alone(device: torch.device) -> None:
    """With a table of places a row takes the scale at its expert's place."""
    experts = torch.tensor([[3, 0], [1, 3], [2, 1]], dtype=torch.int32, device=device)
    table = torch.tensor([-1, 0, -1, 1], dtype=torch.int64, device=device)
    route = route_rows(experts, 2, "product", table)
    x, scales = torch.randn(3, 20, device=device), torch.tensor([[0.01], [0.3]], device=device)
    found = round_by_scale(x, scales, x.dtype, experts=route.experts, table=route.table, top=2)
    for row, place_of in enumerate((1, -1, 0, 1, -1, 0)):
        if place_of >= 0:
            scaled = (x[row // 2] / scales[place_of]).clamp(-448, 448)
            assert torch.equal(found[row], scaled.to(torch.float8_e4m3fn).float())


def test_an_identity_is_not_cut_off(device: torch.device) -> None:
    """What absorbs a projection asks for its weights: ones may be far beyond the calibrated range."""
    linear = make_layer(Codebook(E4M3), 40, 30, torch.float32, 0.0001).to(device)
    assert linear.bias is not None
    meant = linear.weight().T + linear.bias
    linear.use(packed(linear))
    torch.testing.assert_close(linear.unrounded(torch.eye(30, device=device)), meant)
