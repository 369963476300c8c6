"""Packed int8 and int4 linear layers under each instruction set, against the same arithmetic in whole numbers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lsv_cpu import native
from lsv_cpu.linear import LinearRecord
from suite.instruction_sets import EMULATED, MACHINE

Floats = NDArray[np.float32]
ISAS = [isa for isa in (*MACHINE, *EMULATED) if not isa.startswith("amx")]
INT8, INT4 = 1, 2
FORMATS = [(INT8, 0), (INT8, 64), (INT8, 128), (INT4, 32), (INT4, 64), (INT4, 128)]
SIZES = [(32, 64), (96, 256), (70, 200), (33, 96)]  # outputs, inputs
ROWS = (1, 2, 5, 7, 13, 16, 33, 40)


def close_over(isa: str) -> ctypes.CDLL:
    library = native.load(isa)
    if library is None:
        pytest.skip("no compiler")
    return library


@pytest.fixture(params=ISAS)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return close_over(request.param)


@dataclass
class Layer:
    """Quantised weights [outputs, inputs] as whole numbers, their scales [outputs, groups or 1], and a bias or none."""

    format: int
    group: int
    weights: NDArray[np.int64]
    scales: Floats
    bias: torch.Tensor | None

    @classmethod
    def random(cls, format: int, group: int, outputs: int, inputs: int, *, bias: bool = True) -> Layer:
        rng = np.random.default_rng(outputs * inputs)
        low, high = (-128, 128) if format == INT8 else (-8, 8)
        groups = -(-inputs // group) if format == INT4 else 1
        return cls(
            format,
            group,
            rng.integers(low, high, (outputs, inputs)),
            rng.uniform(0.001, 0.01, (outputs, groups)).astype(np.float32),
            torch.from_numpy(rng.normal(size=outputs).astype(np.float32)) if bias else None,
        )

    def stored(self) -> NDArray[Any]:
        """As ``lsv_pack`` takes it."""
        if self.format == INT8:
            return self.weights.astype(np.int8)
        nibbles = (self.weights + 8).astype(np.uint8)
        return nibbles[:, 0::2] | nibbles[:, 1::2] << 4

    def exact(self, x: torch.Tensor) -> Floats:
        """The product without bias, in the order of the kernels: exact per group, groups added up in float."""
        outputs, inputs = self.weights.shape
        size = self.group or inputs
        total = np.zeros((len(x), outputs), np.float32)
        for number, at in enumerate(range(0, inputs, size)):
            codes, scale = quantised(x[:, at : at + size].float().numpy())
            sums = (codes @ self.weights[:, at : at + size].T).astype(np.float32)
            scaled = sums * scale[:, None]
            total += scaled * self.scales[:, number] if self.format == INT4 else scaled
        return total if self.format == INT4 else total * self.scales[:, 0]


def quantised(x: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Whole numbers and the scale of each row."""
    largest = np.abs(x).max(axis=1)
    seen = largest >= np.float32(1e-30)
    inverse = np.divide(np.float32(127), largest, out=np.ones_like(largest), where=seen)
    return np.rint(x * inverse[:, None]).astype(np.int64), np.where(seen, largest / np.float32(127), np.float32(1))


class Packed:
    """A layer in a library's own layout."""

    def __init__(self, library: ctypes.CDLL, layer: Layer, dtype: torch.dtype, gate: int = 0) -> None:
        outputs, inputs = layer.weights.shape
        self.library, self.dtype, self.width = library, dtype, outputs // 2 if gate else outputs
        self.bias = None if layer.bias is None else layer.bias.to(dtype)
        self.record = LinearRecord(native.DTYPES[dtype], layer.format, gate, layer.group, outputs, inputs)
        at = ctypes.byref(self.record)
        panels = library.lsv_panels(at)
        self.panels = np.full(panels * library.lsv_panel_bytes(at) + 64, 0x55, np.uint8)
        self.scales = np.full(panels * 32 * library.lsv_scales_of_output(at), np.nan, np.float32)
        self.sums = np.full(panels * 32, 12345, np.int32)
        self.record.panels = self.panels.ctypes.data
        self.record.scales, self.record.sums = self.scales.ctypes.data, self.sums.ctypes.data
        self.record.bias = None if self.bias is None else self.bias.data_ptr()
        stored, scales = np.ascontiguousarray(layer.stored()), np.ascontiguousarray(layer.scales)
        library.lsv_pack(at, stored.ctypes.data, scales.ctypes.data)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        guarded = torch.full((len(x) + 1, self.width), 77.0, dtype=self.dtype)
        assert x.stride(1) == 1
        self.library.lsv_linear(ctypes.byref(self.record), x.data_ptr(), x.stride(0), len(x), guarded.data_ptr())
        assert (guarded[-1] == 77).all(), "wrote past the output"
        return guarded[:-1]


def rows_of(count: int, inputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(count)).to(dtype)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_product(library: ctypes.CDLL, format: int, group: int, size: tuple[int, int]) -> None:
    layer = Layer.random(format, group, *size)
    packed = Packed(library, layer, torch.float32)
    assert layer.bias is not None
    for count in ROWS:
        x = rows_of(count, size[1])
        wanted = layer.exact(x) + layer.bias.numpy()
        found = packed(x).numpy()
        if not group:
            np.testing.assert_array_equal(found, wanted)
        else:  # whether product and sum are rounded separately is the instruction set's
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("format", "group"), FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(library: ctypes.CDLL, dtype: torch.dtype, format: int, group: int) -> None:
    layer = Layer.random(format, group, 64, 256, bias=False)
    x = rows_of(9, 256, dtype)
    wanted = torch.from_numpy(layer.exact(x)).to(dtype)
    torch.testing.assert_close(Packed(library, layer, dtype)(x), wanted, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("outputs", [64, 88])
@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_gate(library: ctypes.CDLL, format: int, group: int, outputs: int) -> None:
    layer = Layer.random(format, group, outputs, 128)
    x = rows_of(7, 128)
    assert layer.bias is not None
    gate, up = (torch.from_numpy(layer.exact(x)) + layer.bias).chunk(2, dim=-1)
    found = Packed(library, layer, torch.float32, gate=1)(x)
    torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_a_row_does_not_depend_on_the_others(library: ctypes.CDLL, format: int, group: int) -> None:
    layer = Layer.random(format, group, 64, 4864)
    packed = Packed(library, layer, torch.bfloat16)
    x = rows_of(150, 4864, torch.bfloat16)
    whole = packed(x)
    for first, count in [(0, 1), (149, 1), *((7, count) for count in range(1, 41)), (30, 101)]:
        assert torch.equal(packed(x[first : first + count]), whole[first : first + count]), (first, count)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_instruction_sets_agree(format: int, group: int) -> None:
    layer = Layer.random(format, group, 64, 512)
    x = rows_of(5, 512)
    first, *others = [Packed(close_over(isa), layer, torch.float32)(x) for isa in ISAS]
    for other in others:
        assert torch.equal(first, other)


@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_rows_apart(library: ctypes.CDLL, format: int, group: int) -> None:
    layer = Layer.random(format, group, 32, 128)
    packed = Packed(library, layer, torch.float32)
    wide = rows_of(6, 300)
    assert torch.equal(packed(wide[:, 20:148]), packed(wide[:, 20:148].contiguous()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_unusual_rows(library: ctypes.CDLL, format: int, group: int, dtype: torch.dtype) -> None:
    """Zeros give the bias, outliers do not overflow, and what is not finite stays so in its own row."""
    layer = Layer.random(format, group, 32, 256)
    x = torch.stack([torch.zeros(256), torch.full((256,), 3e36), rows_of(1, 256)[0], rows_of(1, 256)[0]])
    x[2, 70], x[3, 70] = torch.nan, torch.inf
    x = x.to(dtype)
    packed = Packed(library, layer, dtype)
    found = packed(x)
    assert packed.bias is not None
    assert torch.equal(found[0], packed.bias)
    assert not found[2:].isfinite().any()
    assert torch.equal(found[:2], packed(x[:2]))
