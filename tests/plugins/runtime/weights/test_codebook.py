"""Weights as codes: what they decode to, in groups, with offsets, out of order, and cut to any number of outputs."""

import pytest
import torch
from torch.nn import functional

from lsv_runtime.weights import codebook
from lsv_runtime.weights.codebook import Codebook, CodedLinear, to_nibbles
from lsv_runtime.weights.quantizer import LinearLayer

SIGNED = tuple(float(n) for n in range(-8, 8))
BYTES = tuple(float(n) for n in range(256))
OUTPUTS, INPUTS = 6, 50


def held(codebook: Codebook, codes: torch.Tensor, **others: torch.Tensor) -> CodedLinear:
    layer = LinearLayer("q", "column", codes.shape[1], (len(codes),), False, torch.float32)
    linear = CodedLinear(layer, codebook, None)
    linear.hold(to_nibbles(codes) if codebook.bits == 4 else codes, **others)
    return linear


@pytest.mark.parametrize("table", [SIGNED, BYTES], ids=["4 bits", "8 bits"])
@pytest.mark.parametrize("group", [0, 16, 64])
def test_a_weight_is_its_codes_value_scaled_and_moved(table: tuple[float, ...], group: int) -> None:
    codebook = Codebook(table, group, offsets=True)
    groups = codebook.groups(INPUTS)
    codes = torch.randint(0, len(table), (OUTPUTS, INPUTS), dtype=torch.uint8)
    scales, offsets = torch.rand(OUTPUTS, groups), torch.randn(OUTPUTS, groups)
    linear = held(codebook, codes, scales=scales, offsets=offsets)
    for output in range(OUTPUTS):
        for column in range(INPUTS):
            at = column // group if group else 0
            wanted = torch.tensor(table[codes[output, column]]) * scales[output, at] + offsets[output, at]
            assert linear.weight()[output, column] == wanted


def test_columns_are_for_the_inputs_that_order_names() -> None:
    codes, order = torch.randint(0, 16, (OUTPUTS, INPUTS), dtype=torch.uint8), torch.randperm(INPUTS)
    scales = torch.rand(OUTPUTS, 4)
    straight = held(Codebook(SIGNED, 16), codes, scales=scales).weight()
    turned = held(Codebook(SIGNED, 16, ordered=True), codes, scales=scales, order=order.int())
    assert torch.equal(turned.weight()[:, order], straight)


def test_the_product_is_that_of_the_decoded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codebook, "_CHUNK", 2 * INPUTS)
    codes = torch.randint(0, 16, (OUTPUTS - 1, INPUTS), dtype=torch.uint8)
    linear = held(Codebook(SIGNED), codes, scales=torch.rand(OUTPUTS - 1, 1))
    x = torch.randn(2, 3, INPUTS)
    torch.testing.assert_close(linear(x), functional.linear(x, linear.weight()))
    assert linear(x.bfloat16()).dtype == torch.bfloat16


def test_what_a_kernel_is_asked_for() -> None:
    codes = torch.zeros(OUTPUTS, INPUTS, dtype=torch.uint8)
    spec = held(Codebook(SIGNED, 32, ordered=True), codes, scales=torch.ones(OUTPUTS, 2)).spec()
    assert (spec.op, spec.format, spec.shape["bits"], spec.shape["group"]) == ("linear.coded", "coded", 4, 32)
    assert spec.flags == {"column", "ordered", "even"}


def test_kinds_of_tables() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert Codebook(tuple(codes.view(dtype).float().tolist())).kind == str(dtype).removeprefix("torch.")
    assert Codebook(tuple(float(number) for number in range(-128, 128))).kind == "even"
    assert Codebook(tuple(0.375 * number for number in range(16))).kind == "even"
    falling = tuple(float(-number) for number in range(16))
    assert Codebook(falling).kind == Codebook((*SIGNED[:-1], 9.0)).kind == "table"
