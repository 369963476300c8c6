"""Rounding of rows, and products of integers and of e4m3 numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from lsv.offers import load_object
from lsv_quant.online import int4, int8
from lsv_quant.online.online import Online
from lsv_runtime.nn.linear import Column
from lsv_runtime.ops import bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_testing.tensors import fill_module, place
from lsv_triton import plugin
from lsv_triton.gemm.rounding import round_rows, round_rows_reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy warns of what is not finite
INT4 = {"int4_g32": int4.make_32, "int4": int4.make_64, "int4_g128": int4.make_128}
QUANTIZERS = {"int8": int8.make, "int8 of whole rows": lambda _: Online("int8", int8.Int8Linear), **INT4}
INT8 = [name for name in QUANTIZERS if name not in INT4]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def rows_to_round(dtype: torch.dtype, inputs: int, device: torch.device) -> torch.Tensor:
    """Of many sizes, among them zeros, halves between two codes, and numbers that are not finite."""
    sizes = torch.tensor([1, 1e-3, 0, 100, 1e-32, 1, 1])[:, None]
    x = torch.randn(7, inputs) * sizes
    x[5], x[6, 3] = torch.arange(inputs) % 9 - 4.5, torch.nan
    return x.to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("code", "largest"), [(torch.int8, 127), (torch.float8_e4m3fn, 448), (torch.float8_e4m3fn, 240)]
)
def test_rounding_is_that_of_the_reference(
    code: torch.dtype, largest: float, dtype: torch.dtype, device: torch.device
) -> None:
    x = rows_to_round(dtype, 300, device)
    codes, scales = round_rows(x, code, multiple=64, largest=largest)
    wanted, wanted_scales = round_rows_reference(x.cpu(), code, largest=largest)
    torch.testing.assert_close(scales.cpu(), wanted_scales, rtol=0, atol=0, equal_nan=True)
    known = codes[:6].cpu()
    assert torch.equal(known[:, :300].view(torch.uint8), wanted[:6].view(torch.uint8))
    assert not known[:, 300:].any()


def test_every_number_is_rounded_to_the_nearest_e4m3(device: torch.device) -> None:
    """All of them, what lies in the middle between two, and what is a little beside."""
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (numbers[1:] + numbers[:-1]) / 2
    beside = [torch.nextafter(middles, torch.tensor(end)) for end in (0.0, 448.0)]
    x = torch.cat((numbers, middles, *beside))
    x = torch.stack((x, -x))
    codes, scales = round_rows(x.to(device), torch.float8_e4m3fn)
    assert torch.equal(scales.cpu(), torch.ones(1, 2))
    assert torch.equal(codes.cpu(), x.to(torch.float8_e4m3fn).view(torch.uint8))


def pair(name: str, dtype: torch.dtype, inputs: int, device: torch.device, *, bias: bool = False) -> tuple[Any, Any]:
    """A layer as Triton runs it and as plain torch does, with the same weights."""
    modules = []
    for bound in (True, False):
        w = place(dtype=dtype, quantizer=QUANTIZERS[name]({}), device=device)
        module = Column.even(w, ("q", "k"), inputs, 35, bias=bias)
        lines = bind(
            module, tuple(plugin.lsv_kernels()) if bound else (), "cuda", lambda offer: load_object(offer.load)
        )
        assert lines[0].implementation == ("lsv_triton.gemm.linear:TritonLinear" if bound else "reference"), lines
        modules.append(fill_module(module, w, DummySource(w.declaration.slots), DummySource(w.declaration.slots)))
    return modules[0].linear, modules[1].linear


@pytest.mark.row("F-434")
@pytest.mark.parametrize("name", INT8)
@pytest.mark.parametrize(("inputs", "bias"), [(100, True), (256, False), (300, True)])
def test_integers(name: str, inputs: int, bias: bool, device: torch.device) -> None:
    """In float32 all is as exact as in the reference and in the same order, so every bit is the same."""
    for dtype, rows in zip(DTYPES, (17, 3, 1), strict=True):
        module, reference = pair(name, dtype, inputs, device, bias=bias)
        x = torch.randn(rows, inputs).to(device, dtype)
        found, wanted = module(x), reference(x)
        if dtype == torch.float32 and device.type == "cpu":
            assert torch.equal(found, wanted)
        tolerance = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
        assert (found.float() - wanted.float()).abs().max() <= tolerance * wanted.float().abs().max()


@pytest.mark.parametrize(
    ("name", "inputs", "bias"), [("int4_g32", 75, False), ("int4", 200, True), ("int4_g128", 140, False)]
)
def test_rows_stay_as_they_are_for_weights_of_4_bits(name: str, inputs: int, bias: bool, device: torch.device) -> None:
    """The reference rounds them, which is where the two differ."""
    for dtype, rows in zip(DTYPES, (17, 3, 1), strict=True):
        module, reference = pair(name, dtype, inputs, device, bias=bias)
        x = torch.randn(rows, inputs).to(device, dtype)
        wanted = x.float() @ reference.dequantise().float().T + (reference.bias.float() if bias else 0)
        tolerance = {torch.float32: 1e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
        assert (module(x).float() - wanted).abs().max() <= tolerance * wanted.abs().max()
        assert (module(x).float() - reference(x).float()).abs().max() <= 2**-5 * wanted.abs().max()


def test_rows_of_int8_are_looked_up_as_the_reference_has_them(device: torch.device) -> None:
    module, reference = pair("int8", torch.bfloat16, 100, device)
    ids = torch.randperm(module.layer.width, device=device)
    assert module.kernel is not None
    assert torch.equal(module.look_up(ids), reference.look_up(ids))


@pytest.mark.parametrize("name", [*INT8, "int4"])
def test_a_row_does_not_depend_on_the_rows_beside_it(name: str, device: torch.device) -> None:
    module, _ = pair(name, torch.float16, 160, device)
    x = torch.randn(20, 160).to(device, torch.float16)
    together = module(x)
    for rows in (1, 16, 17):
        assert torch.equal(module(x[:rows]), together[:rows])


@pytest.mark.slow
def test_integers_of_every_size(device: torch.device) -> None:
    cases = itertools.product(INT8, (96, 165, 256), (False, True), (1, 15, 16, 17, 33))
    for name, inputs, bias, rows in cases:
        module, reference = pair(name, torch.float32, inputs, device, bias=bias)
        x = torch.randn(rows, inputs).to(device)
        torch.testing.assert_close(module(x), reference(x), rtol=1e-6, atol=1e-6)
