"""Linear layers over coded weights, by themselves, under each instruction set that this machine has."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import pytest
import torch

from lsv_cpu import native
from lsv_cpu.linear import PanelLinear
from lsv_runtime.weights.codebook import Codebook, CodedLinear, to_nibbles
from lsv_runtime.weights.quantizer import LinearLayer
from suite.instruction_sets import RUNNABLE

NO_GATE, SILU = 0, 1
NIBBLES = tuple((torch.arange(-8, 8) * 0.375).tolist())
SIGNED = tuple(float(n - 256 if n > 127 else n) for n in range(256))
FP8 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
FLIPPED = tuple(float(n) for n in range(-128, 128))
UNEVEN = tuple((torch.arange(-128, 128) * 0.375).bfloat16().tolist())
TABLES = {"nibbles": NIBBLES, "signed": SIGNED, "flipped": FLIPPED, "fp8": FP8, "uneven": UNEVEN}
# Of the largest output or 1: a rounding of the result, and for float32 the sums' order.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}
ROWS = (1, 2, 3, 4, 5, 7, 12, 13, 16, 33)


@pytest.fixture(params=RUNNABLE)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    found = native.load(request.param)
    if found is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr("lsv_cpu.linear.selected_library", lambda: found)
    found.lsv_set_team(1, None)
    yield found
    found.lsv_set_team(1, None)


def random_layer(
    codebook: Codebook, outputs: int, inputs: int, dtype: torch.dtype = torch.float32, *, bias: bool = False
) -> CodedLinear:
    offset = torch.nn.Parameter(torch.randn(outputs).to(dtype), requires_grad=False) if bias else None
    linear = CodedLinear(LinearLayer("q", "column", inputs, (outputs,), bias, dtype), codebook, offset)
    fill(linear)
    return linear


def fill(linear: CodedLinear) -> None:
    codebook, (outputs, inputs) = linear.codebook, (linear.layer.width, linear.layer.inputs)
    finite = torch.tensor(codebook.table).isfinite().nonzero()[:, 0].to(torch.uint8)
    codes = finite[torch.randint(0, len(finite), (outputs, inputs))]
    groups, size = codebook.groups(inputs), max(abs(value) for value in codebook.table if value == value)
    linear.hold(
        to_nibbles(codes) if codebook.bits == 4 else codes,
        (torch.rand(outputs, groups) + 0.5) / size,
        torch.randn(outputs, groups) / 8 if codebook.offsets else None,
        torch.randperm(inputs).int() if codebook.ordered else None,
    )


def wanted(linear: CodedLinear, x: torch.Tensor) -> torch.Tensor:
    product = x.double() @ linear.weight().double().T
    return product if linear.bias is None else product + linear.bias.double()


def packed(linear: CodedLinear, gate: int = NO_GATE) -> PanelLinear:
    kernel = PanelLinear(linear, linear.spec(), gate)
    kernel.pack()
    return kernel


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    largest = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=TOLERANCE[got.dtype] * largest)


@pytest.mark.parametrize("table", TABLES)
def test_every_coding(library: ctypes.CDLL, table: str) -> None:
    """All pairs of two properties, the dtypes and numbers of rows dealt out among them."""
    codebooks = itertools.product((0, 16, 20, 32, 64, 128, 300), (False, True), (False, True))
    sizes = itertools.cycle([(70, 400), (33, 128), (1, 15), (64, 333), (50, 640), (31, 257), (96, 16)])
    dtypes, rows = itertools.cycle(TOLERANCE), itertools.cycle(ROWS)
    for group, offsets, ordered in codebooks:
        codebook, dtype = Codebook(TABLES[table], group, offsets, ordered), next(dtypes)
        linear = random_layer(codebook, *next(sizes), dtype, bias=ordered)
        x = torch.randn(next(rows), linear.layer.inputs).to(dtype)
        expected = wanted(linear, x)
        assert_near(packed(linear).forward(x), expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_code_at_every_place(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    """What a code means is exact, also NaN or infinity, which do not come in by the padding."""
    specials = float("nan"), float("inf"), float("-inf")
    for table in (*TABLES.values(), (*specials, *range(1, 14)), (*specials, *range(1, 254))):
        values = torch.tensor(table)
        finite = int(values.isfinite().nonzero()[0])
        for place in range(9):
            codes = torch.full((len(table), 9), finite, dtype=torch.uint8)
            codes[:, place] = torch.arange(len(table))
            linear = CodedLinear(LinearLayer("q", "column", 9, (len(table),), False, dtype), Codebook(table), None)
            linear.hold(to_nibbles(codes) if len(table) == 16 else codes, torch.ones(len(table), 1))
            x = torch.eye(9, dtype=dtype)[[place] * 5]
            kernel = packed(linear)
            for rows in (1, 5):
                found = kernel.forward(x[:rows])
                assert torch.equal(found.nan_to_num(0.1), values.to(dtype).nan_to_num(0.1).expand(rows, -1))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(library: ctypes.CDLL, dtype: torch.dtype, bits: int) -> None:
    codebook = Codebook(NIBBLES if bits == 4 else SIGNED, 64, offsets=True, ordered=True)
    kernel = packed(random_layer(codebook, 72, 1500, dtype, bias=True), SILU)
    x = torch.randn(200, 1500).to(dtype) / 16
    alone = torch.cat([kernel.forward(row) for row in x[:80].split(1)])
    for threads in (1, 2, 3):
        library.lsv_set_team(threads, None)
        for count in (*ROWS, 80, 200):
            assert torch.equal(kernel.forward(x[:count])[:80], alone[:count]), (threads, count)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gate(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    for half, rows in ((1, 3), (15, 1), (16, 40), (24, 7), (40, 2)):
        linear = random_layer(Codebook(NIBBLES, 32), 2 * half, 50, dtype, bias=half != 16)
        x = torch.randn(rows, 50).to(dtype) / 4
        gate, up = wanted(linear, x).chunk(2, dim=1)
        assert_near(packed(linear, SILU).forward(x), torch.nn.functional.silu(gate) * up)
