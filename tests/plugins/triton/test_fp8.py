"""Products of weights and rows that are both e4m3, and which layers get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton

from lsv.offers import load_object
from lsv_quant import fp8
from lsv_quant.checkpoints import compressed_tensors, fp8_checkpoint
from lsv_runtime.ops import bind
from lsv_runtime.weights.codebook import ROUNDED, Codebook, CodedLinear
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_triton import device_table, plugin
from lsv_triton.gemm.fp8 import Fp8Linear, fp8_reference
from lsv_triton.gemm.rounding import round_rows, round_rows_reference
from lsv_triton.gemm.weights import halve, why_not_rounded

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy warns of what is not finite
FLOAT8 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-9, torch.bfloat16: 2**-5}
"""Of the largest output."""
NATIVE = 2**-12
"""Likewise: a Hopper GPU adds products of e4m3 with 13 bits behind the point of the largest."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def make_layer(
    outputs: int, inputs: int, group: int, dtype: torch.dtype, device: torch.device, marks: tuple[str, ...] = (ROUNDED,)
) -> CodedLinear:
    bias = torch.nn.Parameter(torch.randn(outputs).to(dtype), requires_grad=False)
    layer = LinearLayer("q", "column", inputs, (outputs,), True, dtype)
    linear = CodedLinear(layer, Codebook(FLOAT8, group), bias, frozenset(marks))
    codes = (torch.randn(outputs, inputs) * 100).to(torch.float8_e4m3fn).view(torch.uint8)
    linear.hold(codes, torch.rand(outputs, linear.codebook.groups(inputs)) / 100)
    return linear.to(device)


def packed(linear: CodedLinear) -> Fp8Linear:
    kernel = Fp8Linear(linear, linear.spec())
    kernel.pack()
    return kernel


@pytest.mark.parametrize(("rows", "outputs", "inputs", "group"), [(5, 40, 200, 0), (17, 33, 70, 0), (17, 70, 300, 128)])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.row("F-435")
def test_products(rows: int, outputs: int, inputs: int, group: int, dtype: torch.dtype, device: torch.device) -> None:
    linear = make_layer(outputs, inputs, group, dtype, device)
    x = (torch.randn(rows, inputs) * torch.logspace(-2, 2, inputs)).to(device, dtype)
    wanted, exact = fp8_reference(linear, x).float(), linear.reference(x).float()
    kernel = packed(linear)
    found = kernel.forward(x)
    assert found.dtype == dtype
    tolerance = TOLERANCE[dtype] if kernel._stack.native is None else max(TOLERANCE[dtype], NATIVE)
    assert (found.float() - wanted).abs().max() <= tolerance * wanted.abs().max()
    assert 0 < (found.float() - exact).abs().max() <= 0.1 * exact.abs().max()
    assert torch.equal(kernel.forward(x[:1]), found[:1])


@pytest.mark.row("F-419")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_tokens_within_a_bound(dtype: torch.dtype, device: torch.device) -> None:
    """As fbgemm rounds them: a scale goes by the bound where a number is beyond it, and such numbers are clamped."""
    linear = make_layer(40, 200, 0, dtype, device)
    linear.input_bound = 3.0
    x = (torch.randn(5, 200) * torch.tensor([0.1, 0.5, 1.0, 4.0, 20.0])[:, None]).to(device, dtype)
    peaks = x.float().abs().amax(dim=1, keepdim=True)
    assert (peaks < 3).any()
    scales = peaks.clamp(max=3.0) / 448
    rounded = (x.float() / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales
    wanted = linear.reference(rounded)
    tolerance = max(TOLERANCE[dtype], NATIVE) * wanted.abs().max()
    assert (packed(linear).forward(x).float() - wanted).abs().max() <= tolerance


@pytest.mark.parametrize("group", [0, 64])
def test_rounding_by_group(group: int, device: torch.device) -> None:
    x = torch.randn(7, 150) * torch.logspace(-3, 3, 150)
    codes, scales = round_rows(x.to(device), torch.float8_e4m3fn, group=group, multiple=group or 1)
    wanted, wanted_scales = round_rows_reference(x, torch.float8_e4m3fn, group=group)
    assert scales.shape == (3 if group else 1, 7)
    assert torch.equal(scales.cpu(), wanted_scales)
    assert torch.equal(codes[:, :150].cpu(), wanted.view(torch.uint8))


def test_numbers_of_amd(device: torch.device) -> None:
    """e4m3fnuz has the bits of e4m3fn at half the value, up to 240, and one zero."""
    x = torch.cat((torch.randn(3, 200) * 50, torch.tensor([-0.0, 0.0, -1e-9]).repeat(3, 1)), dim=1)
    codes, scales = round_rows(x.to(device), torch.float8_e4m3fnuz)
    wanted, wanted_scales = round_rows_reference(x, torch.float8_e4m3fnuz)
    assert torch.equal(scales.cpu(), wanted_scales)
    assert torch.equal(codes.cpu(), wanted.view(torch.uint8))
    every = torch.arange(256, dtype=torch.uint8)
    halved = every.clone()
    halve(halved)
    values = halved.view(torch.float8_e4m3fnuz).float()
    torch.testing.assert_close(values * 2, every.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True)


DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = {**DYNAMIC, "weight_block_size": [128, 128]}


def compressed(strategy: str, dynamic: bool, **weights: Any) -> dict[str, Any]:
    number = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"], "weights": {**number, "strategy": "channel", **weights},
        "input_activations": {**number, "strategy": strategy, "dynamic": dynamic} if strategy else None,
    }  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("make", "config", "rounded"),
    [
        (fp8.make, DYNAMIC, "by token"),
        (fp8.make, BLOCKS, "by token"),
        (fp8.make, {**DYNAMIC, "activation_scheme": "static"}, "static"),
        (fp8.make, {}, "by token"),
        (fp8.make_tensor, {}, "by token"),
        (fp8_checkpoint.make_fbgemm, {"quant_method": "fbgemm_fp8"}, "by token"),
        (compressed_tensors.make, compressed("token", True), "by token"),
        (compressed_tensors.make, compressed("tensor", False), "static"),
        (compressed_tensors.make, compressed("", False), ""),
    ],
)
def test_activations_are_rounded_where_weights_are_meant_for_it(
    make: Any, config: Mapping[str, Any], rounded: str, device: torch.device
) -> None:
    layer = LinearLayer("model.layers.0.self_attn.q_proj", "column", 128, (64,), False, torch.bfloat16)
    quantizer = make(config)
    tensors = {
        one.suffix: torch.nn.Parameter(torch.empty(1, device="meta"), requires_grad=False)
        for one in quantizer.stored(layer)
    }
    linear = quantizer.build(layer, tensors)
    offers = tuple(plugin.lsv_kernels())
    (line,) = bind(linear, offers, "cuda", lambda offer: load_object(offer.load))
    assert line.implementation.endswith("Fp8Linear" if rounded == "by token" else "TritonLinear"), line
    assert line.op == ("linear.coded_static" if rounded == "static" else "linear.coded")
    if not rounded:
        assert "activations are not meant to be rounded" in line.why


def test_a_gpu_without_8_bit_floats_keeps_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_layer(8, 128, 0, torch.bfloat16, torch.device("cpu")).spec()
    monkeypatch.setattr("lsv_triton.gemm.weights.why_not_weights", lambda spec: None)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr("lsv_triton.gemm.weights.float8_of", lambda: None)
    assert why_not_rounded(spec) == "the GPU multiplies no 8-bit floats"
    monkeypatch.setattr("lsv_triton.gemm.weights.float8_of", lambda: torch.float8_e4m3fn)
    assert why_not_rounded(spec) is None


@pytest.mark.parametrize(
    ("backend", "arch", "wanted"),
    [
        ("cuda", 86, None), ("cuda", 89, torch.float8_e4m3fn), ("cuda", 120, torch.float8_e4m3fn),
        ("hip", "gfx942", torch.float8_e4m3fnuz), ("hip", "gfx950", torch.float8_e4m3fn), ("hip", "gfx1100", None),
        ("xpu", {"name": "B580"}, None),
    ],
)  # fmt: skip
def test_what_a_matrix_unit_takes(
    backend: str, arch: Any, wanted: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        active: Any = None

    class Target:
        def get_current_target(self) -> Any:
            return type("Target", (), {"backend": backend, "arch": arch})

    Driver.active = Target()
    monkeypatch.setattr(triton.runtime, "driver", Driver)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    assert device_table.float8_of() == wanted
