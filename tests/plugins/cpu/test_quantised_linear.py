"""Layers in the integer formats and in codes, rounded and packed by native code, against their plain-torch form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lsv.offers import load_object
from lsv_cpu import plugin
from lsv_cpu.kernels import RoundInt4, RoundInt8
from lsv_quant.online import int4, int8, online_coded
from lsv_quant.online.online import Online
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.ops import bind
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.fill import Filler
from lsv_testing.ops import check_rows
from lsv_testing.tensors import fill_module, place

WHOLE_ROWS = Online("int8", int8.Int8Linear)
ROUNDED = {
    "int8": int8.make,
    "int8 of whole rows": lambda _: WHOLE_ROWS,
    "int4_g32": int4.make_32,
    "int4": int4.make_64,
    "int4_g128": int4.make_128,
}
CODED = {
    "codes and offsets": online_coded.make_asym_int4_32,
    "codes of 4 bits": online_coded.make_nf4,
    "codes of 8 bits": online_coded.make_int8_weight_only,
}
QUANTIZERS = {**ROUNDED, **CODED}
FORMATS = pytest.mark.parametrize("name", QUANTIZERS)


def pair(name: str, make: Any, dtype: torch.dtype) -> tuple[Any, Any, Filler]:
    """A module as the cpu platform runs it and as plain torch does, with the same weights."""
    w, plain = place(dtype=dtype, quantizer=QUANTIZERS[name]({})), place(dtype=dtype, quantizer=QUANTIZERS[name]({}))
    module, reference = make(w), make(plain)
    fill_module(reference, plain, DummySource(plain.declaration.slots))
    lines = bind(module, tuple(plugin.lsv_kernels()), "cpu", lambda offer: load_object(offer.load))
    assert any("PanelLinear" in line.implementation or "PanelMLP" in line.implementation for line in lines), lines
    filler = Filler(module, w.declaration.slots)
    filler.fill(DummySource(w.declaration.slots), w.device)
    return module, reference, filler


@FORMATS
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inputs", [256, 200])
def test_linear(name: str, inputs: int, bias: bool, device: Device) -> None:
    module, reference, _ = pair(name, lambda w: Column.even(w, ("q", "k"), inputs, 50, bias=bias), torch.float32)
    for rows in (1, 2, 7, 16, 33):
        x = torch.randn(rows, inputs)
        torch.testing.assert_close(module(x), reference(x), rtol=1e-4, atol=1e-4 * float(reference(x).abs().max()))
    check_rows(module.linear, (torch.randn(20, inputs),))


@FORMATS
def test_gated_mlp(name: str, device: Device) -> None:
    module, reference, _ = pair(name, lambda w: GatedMLP(w, 160, 192, "silu"), torch.bfloat16)
    x = torch.randn(9, 160).bfloat16()
    found, wanted = module(x).float(), reference(x).float()
    assert (found - wanted).abs().max() <= 0.03 * wanted.abs().max()  # the gate is not rounded before the product
    check_rows(module, (x,))


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_native_rounding_is_that_of_the_reference(name: str, dtype: torch.dtype, device: Device) -> None:
    weight = torch.randn(37, 331).to(dtype)
    weight[3] = 0
    reference = rounding_of(name, dtype)
    kernel: Any = (RoundInt8 if reference.op == "round.int8" else RoundInt4)(reference, reference.spec())
    codes, scales = buffers(reference, weight)
    wanted_codes, wanted_scales = buffers(reference, weight)
    kernel.forward(weight, codes, scales)
    reference.reference(weight, wanted_codes, wanted_scales)
    if reference.op == "round.int8":
        assert torch.equal(codes, wanted_codes)
        assert torch.equal(scales, wanted_scales)
    else:  # where two pairs of codes and scale are about as good either may be taken
        assert (~scales.isclose(wanted_scales, rtol=1e-6)).float().mean() < 0.01
        assert (codes != wanted_codes).float().mean() < 0.01


@pytest.mark.parametrize("name", ROUNDED)
def test_native_rounding_hides_no_number_that_is_not_finite(name: str, device: Device) -> None:
    weight = torch.randn(4, 331)
    weight[1, 7], weight[2, 330] = torch.nan, -torch.inf
    reference = rounding_of(name, torch.float32)
    kernel: Any = (RoundInt8 if reference.op == "round.int8" else RoundInt4)(reference, reference.spec())
    codes, scales = buffers(reference, weight)
    kernel.forward(weight, codes, scales)
    assert scales.reshape(4, -1).isfinite().all(1).tolist() == [True, False, False, True]


def rounding_of(name: str, dtype: torch.dtype) -> Any:
    w = place(dtype=dtype, quantizer=QUANTIZERS[name]({}))
    return Column.even(w, ("q",), 64, 32).linear.round


def buffers(reference: Any, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    outputs, inputs = weight.shape
    if reference.op == "round.int8":
        return torch.empty(outputs, inputs, dtype=torch.int8), torch.empty(outputs)
    return torch.empty(outputs, -(-inputs // 2), dtype=torch.uint8), torch.empty(outputs, -(-inputs // reference.group))


@FORMATS
def test_filling_again_writes_to_the_same_storage(name: str, device: Device) -> None:
    module, _, filler = pair(name, lambda w: Column.even(w, ("q",), 128, 64), torch.bfloat16)
    x = torch.randn(2, 128).bfloat16()
    before, packed = module(x), module.linear.packed.data_ptr()
    filler.fill(DummySource(filler.slots), torch.device("cpu"))
    assert module.linear.packed.data_ptr() == packed
    assert torch.equal(module(x), before)
    held = [tensor for tensor in (*module.parameters(), *module.buffers()) if not tensor.is_meta]
    assert sum(tensor.nbytes for tensor in held) < 128 * 64 * 1.2
