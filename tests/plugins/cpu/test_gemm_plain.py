"""Linear layers over plain weights, by themselves, under each instruction set that this machine has."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from lsv_cpu import native
from lsv_cpu.linear import LinearRecord
from suite.instruction_sets import RUNNABLE

NO_GATE, SILU, GELU, GELU_TANH, RELU = range(5)
ACTIVATIONS = {
    SILU: torch.nn.functional.silu,
    GELU: torch.nn.functional.gelu,
    GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    RELU: torch.relu,
}
PANEL = 32
# Of the largest output or 1: a rounding of the result, and for float32 the sums' order.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 25, 40, 75)


@pytest.fixture(params=RUNNABLE)
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    found = native.load(request.param)
    if found is None:
        pytest.skip("no C++ compiler")
    found.lsv_look_up.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    found.lsv_set_team(1, None)
    yield found
    found.lsv_set_team(1, None)


@dataclass
class Packed:
    """A layer of random weights, and what it should give."""

    library: ctypes.CDLL
    weight: torch.Tensor
    bias: torch.Tensor | None
    gate: int
    record: LinearRecord
    panels: torch.Tensor

    @classmethod
    def random(
        cls,
        library: ctypes.CDLL,
        dtype: torch.dtype,
        outputs: int,
        inputs: int,
        *,
        gate: int = NO_GATE,
        bias: bool = False,
    ) -> Packed:
        weight = torch.randn(outputs, inputs).to(dtype)
        offset = torch.randn(outputs).to(dtype) if bias else None
        record = LinearRecord(native.DTYPES[dtype], 0, gate, 0, outputs, inputs)
        size = library.lsv_panels(ctypes.byref(record)) * library.lsv_panel_bytes(ctypes.byref(record))
        panels = torch.full((size + 64,), -1, dtype=torch.int8)  # what packing leaves unwritten reads as NaN
        record.panels = -(-panels.data_ptr() // 64) * 64
        record.bias = None if offset is None else offset.data_ptr()
        library.lsv_pack(ctypes.byref(record), weight.data_ptr(), None)
        return cls(library, weight, offset, gate, record, panels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        width = self.weight.shape[0] // 2 if self.gate else self.weight.shape[0]
        out = torch.full((x.shape[0], width), float("nan"), dtype=x.dtype)
        self.library.lsv_linear(ctypes.byref(self.record), x.data_ptr(), x.stride(0), x.shape[0], out.data_ptr())
        return out

    def wanted(self, x: torch.Tensor) -> torch.Tensor:
        product = x.double() @ self.weight.double().T
        if self.bias is not None:
            product += self.bias.double()
        if self.gate:
            gate, up = product.chunk(2, dim=1)
            product = ACTIVATIONS[self.gate](gate) * up
        return product

    def unpack(self, outputs: torch.Tensor) -> torch.Tensor:
        rows = torch.full((len(outputs), self.weight.shape[1]), float("nan"), dtype=self.weight.dtype)
        self.library.lsv_look_up(ctypes.byref(self.record), outputs.data_ptr(), len(outputs), rows.data_ptr())
        return rows


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    largest = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=TOLERANCE[got.dtype] * largest)


def rows_of(packed: Packed, count: int) -> torch.Tensor:
    return torch.randn(count, packed.weight.shape[1]).to(packed.weight.dtype)


@DTYPES
def test_every_size_of_a_panel_and_a_tile(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    for size in range(1, 71):
        packed = Packed.random(library, dtype, outputs=size, inputs=71 - size, bias=size % 2 == 0)
        x = rows_of(packed, ROWS[size % len(ROWS)])
        assert_near(packed(x), packed.wanted(x))


@pytest.mark.parametrize("gate", ACTIVATIONS)
@DTYPES
def test_gate(library: ctypes.CDLL, dtype: torch.dtype, gate: int) -> None:
    for half in (1, 15, 16, 24, 40):
        packed = Packed.random(library, dtype, outputs=2 * half, inputs=50, gate=gate, bias=half != 16)
        x = rows_of(packed, half) / 4
        assert_near(packed(x), packed.wanted(x))


@pytest.mark.parametrize("threads", [1, 2, 3])
@DTYPES
def test_a_row_does_not_depend_on_the_rows_beside_it(library: ctypes.CDLL, dtype: torch.dtype, threads: int) -> None:
    packed = Packed.random(library, dtype, outputs=72, inputs=4200, gate=SILU, bias=True)
    x = rows_of(packed, 200) / 64
    alone = torch.cat([packed(row) for row in x[:80].split(1)])
    library.lsv_set_team(threads, None)
    for count in (*ROWS, 80, 200):
        got = packed(x[:count])
        assert torch.equal(got[:80], alone[:count]), count
        assert_near(got, packed.wanted(x[:count]))


@DTYPES
def test_rows_that_are_part_of_wider_ones(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    packed = Packed.random(library, dtype, outputs=40, inputs=33)
    wide = torch.randn(14, 100).to(dtype)
    assert torch.equal(packed(wide[:, 50:83]), packed(wide[:, 50:83].contiguous()))


@pytest.mark.parametrize("gate", [NO_GATE, SILU])
@DTYPES
def test_weights_are_read_back(library: ctypes.CDLL, dtype: torch.dtype, gate: int) -> None:
    for outputs, inputs in ((2, 1), (70, 33), (96, 64)):
        packed = Packed.random(library, dtype, outputs, inputs, gate=gate)
        chosen = torch.cat([torch.randint(0, outputs, (50,)), torch.arange(outputs)])
        assert torch.equal(packed.unpack(chosen), packed.weight[chosen])


def test_no_rows(library: ctypes.CDLL) -> None:
    packed = Packed.random(library, torch.bfloat16, outputs=PANEL, inputs=40)
    assert packed(rows_of(packed, 0)).shape == (0, PANEL)


def test_infinity_and_nan_stay_in_their_row(library: ctypes.CDLL) -> None:
    packed = Packed.random(library, torch.bfloat16, outputs=PANEL, inputs=40)
    x = rows_of(packed, 5)
    calm = packed(x)
    x[1, 3], x[3, 7] = float("inf"), float("nan")
    got = packed(x)
    assert not got[1].isfinite().any()
    assert got[3].isnan().all()
    assert torch.equal(got[::2], calm[::2])
