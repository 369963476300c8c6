"""Kernels over vllm_xpu_kernels and over PyTorch's int4 product, each against the reference it stands in for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lsv.offers import KernelOffer, OpSpec, load_object
from lsv_quant.online.int4 import make_64
from lsv_runtime.emulation.vendors.checks import BadCall
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedActivation
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_runtime.ops import bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.codebook import ROUNDED, Codebook, CodedLinear, to_nibbles
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_testing.ops import check_kernel
from lsv_testing.tensors import fill_module, place
from lsv_xpu import libraries, plugin
from lsv_xpu.emulation.torch_int4 import FakeTorchInt4
from lsv_xpu.emulation.vllm_kernels import FakeVllmKernels

pytestmark = pytest.mark.onednn

TOLERANCE = {torch.bfloat16: 2**-6, torch.float16: 2**-9}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
NIBBLES = tuple(float(number) for number in range(-8, 8))
COUNTS = tuple(float(number) for number in range(16))
E4M3, E5M2 = (
    tuple(torch.arange(256, dtype=torch.uint8).view(dtype).float().tolist())
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
)
INT4 = ("vllm.ops:VllmInt4Linear", "torch_int4:TorchInt4Linear")


@pytest.fixture(autouse=True)
def fakes() -> Iterator[dict[str, Any]]:
    """Fakes of both libraries, in use while a test runs."""
    made = {
        libraries.VLLM: FakeVllmKernels(),
        libraries.FP8_GEMM: FakeVllmKernels(),
        libraries.TORCH_INT4: FakeTorchInt4(),
    }
    for name, fake in made.items():
        libraries.use(name, fake)
    yield made
    libraries.forget()


def offer(op: str, kernel: str) -> KernelOffer:
    (found,) = (one for one in plugin.lsv_kernels() if one.op == op and one.load == f"lsv_xpu.{kernel}")
    return found


@DTYPES
def test_rms_norm(dtype: torch.dtype) -> None:
    fused = torch.randn(5, 8, 64).to(dtype)
    inputs = [(torch.randn(7, 64).to(dtype),), (fused[:, 3:],)]
    check_kernel(
        offer("rms_norm", "vllm.ops:RmsNorm"),
        lambda w: RMSNorm(w, 64, 1e-5),
        inputs,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
    )


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh"])
@DTYPES
def test_gated_products(dtype: torch.dtype, name: str) -> None:
    inputs = [(3 * torch.randn(rows, 48).to(dtype),) for rows in (1, 5)]
    check_kernel(
        offer(f"{name}_mul", "vllm.ops:GatedProduct"),
        lambda w: GatedActivation(name, dtype),
        inputs,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
    )


@pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (80, 20)])
@DTYPES
def test_rope(dtype: torch.dtype, dim: int, rotary: int) -> None:
    """The op turns heads in place; what it was given stays as it is, for ``check_kernel`` compares on the same."""
    fused, positions = torch.randn(9, 12, dim).to(dtype), torch.randint(0, 500, (9,))
    inputs = [(fused, positions), (fused[:, 2:5], positions)]
    check_kernel(
        offer("rope", "vllm.ops:Rotate"),
        lambda w: Rope(w, rope(dim, rotary), 500),
        inputs,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
    )


def rope(dim: int, rotary: int) -> RopeConfig:
    return RopeConfig(
        kind="default", theta=1e4, head_dim=dim, rotary_dim=rotary, length=500, original_length=500, parameters={}
    )


def coded(codebook: Codebook, dtype: torch.dtype, *, inputs: int = 128, bias: bool = True) -> CodedLinear:
    added = torch.nn.Parameter(torch.randn(24).to(dtype), requires_grad=False) if bias else None
    return CodedLinear(LinearLayer("q", "column", inputs, (24,), bias, dtype), codebook, added)


def hold(linear: CodedLinear, *, whole_zeros: bool = True) -> None:
    """Random weights. Offsets are those of zeros that are integers, unless they are not to be."""
    codebook, (outputs, inputs) = linear.codebook, (linear.layer.width, linear.layer.inputs)
    finite = torch.tensor(codebook.table).isfinite().nonzero()[:, 0].to(torch.uint8)
    codes = finite[torch.randint(0, len(finite), (outputs, inputs))]
    scales = (torch.rand(outputs, codebook.groups(inputs)) + 0.5) / 16
    zeros = torch.randint(0, 16, scales.shape) if whole_zeros else 15 * torch.rand(scales.shape)
    linear.hold(
        to_nibbles(codes) if codebook.bits == 4 else codes,
        scales,
        (-zeros - codebook.table[0]) * scales if codebook.offsets else None,
        torch.randperm(inputs).int() if codebook.ordered else None,
    )


def check_coded(kernel: str, linear: CodedLinear, *, whole_zeros: bool = True) -> None:
    """Bound to the layer, and its weights packed twice as when they are loaded again, it computes the reference."""
    one = offer("linear.coded", kernel)
    (line,) = bind(linear, [one], "xpu", lambda offer: load_object(offer.load))
    assert line.implementation == one.load, f"the kernel refuses the layer: {line.why}"
    for _ in range(2):
        hold(linear, whole_zeros=whole_zeros)
        given = [torch.randn(*shape, linear.layer.inputs).to(linear.layer.dtype) for shape in ((5,), (2, 3))]
        wanted = [linear.reference(x) for x in given]  # before the weights are taken
        linear.pack()
        for x, exact in zip(given, wanted, strict=True):
            got = linear(x)
            assert (got.shape, got.dtype) == (exact.shape, exact.dtype)
            error = (got.float() - exact.float()).abs().max() / exact.float().abs().max()
            assert error <= TOLERANCE[linear.layer.dtype], f"off by {error:.1e}"


@pytest.mark.row("F-463", "F-437")
@pytest.mark.parametrize("kernel", INT4)
@pytest.mark.parametrize("group", [32, 64, 128, 0])
@DTYPES
def test_symmetric_int4(kernel: str, group: int, dtype: torch.dtype) -> None:
    check_coded(kernel, coded(Codebook(NIBBLES, group), dtype))


@pytest.mark.row("F-463", "F-407", "F-437")
@pytest.mark.parametrize("kernel", INT4)
@pytest.mark.parametrize("whole_zeros", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("table", [NIBBLES, COUNTS, tuple(0.375 * value for value in NIBBLES)])
def test_int4_with_offsets(kernel: str, table: tuple[float, ...], ordered: bool, whole_zeros: bool) -> None:
    """Zeros that are integers are the op's; others take a product of their own with the sums of groups of inputs."""
    codebook = Codebook(table, 32, offsets=True, ordered=ordered)
    check_coded(kernel, coded(codebook, torch.float16, bias=not ordered), whole_zeros=whole_zeros)


def test_zeros_that_do_not_fit_a_nibble_are_not_lost(fakes: dict[str, Any]) -> None:
    linear = coded(Codebook(COUNTS, 32, offsets=True), torch.float16, bias=False)
    bind(linear, [offer("linear.coded", INT4[0])], "xpu", lambda offer: load_object(offer.load))
    codes, scales = torch.randint(0, 256, (24, 64), dtype=torch.uint8), torch.full((24, 4), 0.05)
    linear.hold(codes, scales, -16 * scales)
    x = torch.randn(3, 128).half()
    wanted = linear.reference(x)
    linear.pack()
    torch.testing.assert_close(linear(x), wanted, rtol=2**-8, atol=2**-8 * float(wanted.abs().max()))


@pytest.mark.row("F-406")
@pytest.mark.parametrize("kernel", INT4)
def test_online_int4(kernel: str) -> None:
    """The reference rounds its inputs to 8 bits and the product does not: they are no nearer than that rounding."""
    one, made = offer("linear.int4", kernel), []
    for _ in range(2):
        w = place(dtype=torch.bfloat16, quantizer=make_64({}))
        made.append((Column.even(w, ("q", "k"), 128, 24, bias=True).linear, w))
    (line,) = bind(made[0][0], [one], "xpu", lambda offer: load_object(offer.load))
    assert line.implementation == one.load, line.why
    for module, w in made:
        fill_module(module, w, DummySource(w.declaration.slots))
    x = torch.randn(6, 128).bfloat16()
    got, wanted = (module(x).float() for module, _ in made)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 0.02


@pytest.mark.row("F-463", "F-407", "F-437")
@pytest.mark.parametrize("table", [E4M3, E5M2], ids=["e4m3", "e5m2"])
@DTYPES
def test_float8(table: tuple[float, ...], dtype: torch.dtype) -> None:
    linear = coded(Codebook(table), dtype)
    check_coded("vllm.ops:Fp8Linear", linear)


@pytest.mark.row("F-403", "F-404")
@pytest.mark.parametrize("bound", [math.inf, 2.0])
@DTYPES
def test_float8_by_float8(dtype: torch.dtype, bound: float, fakes: dict[str, Any]) -> None:
    """Tokens are rounded as they come, so what is computed is the reference of rounded tokens."""
    linear = coded(Codebook(E4M3), dtype)
    linear.marks, linear.input_bound = frozenset((ROUNDED,)), bound
    offers = [one for one in plugin.lsv_kernels() if one.op == "linear.coded"]
    (line,) = bind(linear, offers, "xpu", lambda offer: load_object(offer.load))
    assert line.implementation == "lsv_xpu.vllm.ops:RoundedFp8Linear"
    hold(linear)
    x = (torch.randn(2, 3, linear.layer.inputs) * torch.tensor([1.0, 30.0, 0.01])[:, None]).to(dtype)
    scales = x.float().abs().amax(-1, keepdim=True).clamp(max=bound) / 448
    rounded = (x.float() / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales
    wanted, exact = (linear.reference(one).float() for one in (rounded, x))
    linear.pack()
    found = linear(x).float()
    assert (found - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    assert (found - exact).abs().max() > 0
    assert "fp8_gemm" in fakes[libraries.VLLM].calls


def test_layers_that_keep_their_activations() -> None:
    supports = offer("linear.coded", "vllm.ops:RoundedFp8Linear").supports
    rounded = coded(Codebook(E4M3), torch.float16)
    rounded.marks = frozenset((ROUNDED,))
    assert supports(rounded.spec()) is None
    assert "not meant" in (supports(coded(Codebook(E4M3), torch.float16).spec()) or "")
    assert "not e4m3" in (supports(coded(Codebook(E5M2), torch.float16).spec()) or "")
    libraries.refuse(libraries.FP8_GEMM, "such engines")
    assert supports(rounded.spec()) == "lacks such engines"


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@DTYPES
def test_experts(dtype: torch.dtype, activation: str) -> None:
    """Also where some experts get no row."""
    check_kernel(
        offer("moe", "vllm.moe:GroupedExperts"),
        lambda w: MoE(w, 32, 24, activation, experts=6, top=2, normalise=True),
        [(torch.randn(rows, 32).to(dtype),) for rows in (1, 9)],
        dtype=dtype,
        tolerance=2 * TOLERANCE[dtype],
    )


@pytest.mark.parametrize("kernel", INT4)
def test_layers_an_int4_product_cannot_serve(kernel: str) -> None:
    supports = offer("linear.coded", kernel).supports
    curved = tuple(value * abs(value) for value in NIBBLES)
    for linear, word in (
        (coded(Codebook(curved, 32), torch.float16), "evenly"),
        (coded(Codebook(NIBBLES, 16), torch.float16), "groups of 16"),
        (coded(Codebook(NIBBLES, 64), torch.float16, inputs=96), "groups of 64 of 96"),
        (coded(Codebook(NIBBLES, 32), torch.float32), "float32"),
        (coded(Codebook(E4M3), torch.float16), "8 bits"),
    ):
        assert word in (supports(linear.spec()) or "")


def test_layers_the_float8_product_cannot_serve() -> None:
    supports = offer("linear.coded", "vllm.ops:Fp8Linear").supports
    for codebook, word in ((Codebook(NIBBLES, 32), "8-bit floats"), (Codebook(E4M3, 128), "scale an output")):
        assert word in (supports(coded(codebook, torch.float16).spec()) or "")


def test_nothing_is_offered_without_the_libraries() -> None:
    libraries.emulate("none")
    for one in plugin.lsv_kernels():
        assert "lacks" in (one.supports(OpSpec(one.op, "float16")) or "")


def test_what_the_fakes_refuse(fakes: dict[str, Any]) -> None:
    fake = fakes[libraries.VLLM]
    x, weight = torch.zeros(2, 64).half(), torch.zeros(8, 8, dtype=torch.int32)
    scales, zeros = torch.ones(2, 8).half(), torch.tensor([8], dtype=torch.int8)
    fake.int4_gemm_w4a16(x, weight.t(), None, scales, zeros, 32, None)
    for wrong, word in (
        ((x.float(), weight.t(), None, scales, zeros, 32, None), "float32"),
        ((x, weight.t().contiguous(), None, scales, zeros, 32, None), "transposed"),
        ((x, weight.t(), None, scales.float(), zeros, 32, None), "B_scale"),
        ((x, weight.t(), None, scales, zeros.int(), 32, None), "B_zp"),
        ((x, weight.t(), None, scales, zeros, 48, None), "groups of 48"),
    ):
        with pytest.raises(BadCall, match=word):
            fake.int4_gemm_w4a16(*wrong)
    with pytest.raises(BadCall, match="strides"):
        fake.silu_and_mul(torch.zeros(2, 4), torch.zeros(2, 16)[:, ::2])
