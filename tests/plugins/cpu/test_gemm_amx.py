"""Linear layers on AMX tiles, emulated in plain C++: right, the same for every batch and team, and in whole numbers the
same to the bit as the vector kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch

from lsv_cpu import native
from lsv_cpu.linear import LinearRecord
from lsv_cpu.machine import Machine
from suite.instruction_sets import MACHINE

EMULATED, VECTOR = Machine().emulation("amx"), Machine().runnable("avx512_bf16")
PLAIN, INT8, INT4 = 0, 1, 2
WHOLE = [(INT8, 0), (INT8, 128), (INT4, 32), (INT4, 64), (INT4, 128)]
FORMATS = [(PLAIN, 0), *WHOLE]
ROWS = [8, 15, 16, 17, 31, 32, 33, 70]
BF16 = torch.bfloat16

pytestmark = [
    pytest.mark.skipif("avx2" not in MACHINE, reason="emulated with AVX2"),
    pytest.mark.slow,  # compiles kernels that no other test needs
]


@pytest.fixture(scope="module")
def libraries() -> dict[str, ctypes.CDLL]:
    loaded = {isa: native.load(isa) for isa in (EMULATED, VECTOR)}
    if None in loaded.values():
        pytest.skip("no compiler")
    return {isa: library for isa, library in loaded.items() if library is not None}


@pytest.fixture
def set_team(libraries: dict[str, ctypes.CDLL]) -> Iterator[Callable[[int], None]]:
    """Sets the size of the team behind the tile kernels."""
    yield lambda size: libraries[EMULATED].lsv_set_team(size, None)
    libraries[EMULATED].lsv_set_team(1, None)


class Layer:
    """Weights [outputs, inputs], in int8 and int4 whole numbers with a scale per output and group; a bias."""

    def __init__(self, format: int, group: int, outputs: int, inputs: int, dtype: torch.dtype = BF16) -> None:
        draw = torch.Generator().manual_seed(outputs * inputs)
        self.format, self.group, self.dtype = format, group, dtype
        if format == PLAIN:
            self.weights = torch.randn(outputs, inputs, generator=draw).to(dtype)
        else:
            low, high = (-128, 128) if format == INT8 else (-8, 8)
            self.weights = torch.randint(low, high, (outputs, inputs), generator=draw, dtype=torch.int8)
        self.scales = torch.rand(outputs, -(-inputs // group) if format == INT4 else 1, generator=draw) / 100 + 0.001
        self.bias = torch.randn(outputs, generator=draw).to(dtype)

    def stored(self) -> torch.Tensor:
        if self.format != INT4:
            return self.weights
        nibbles = (self.weights + 8).to(torch.uint8)
        return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


class Packed:
    def __init__(self, library: ctypes.CDLL, layer: Layer, gate: int = 0) -> None:
        outputs, inputs = layer.weights.shape
        self.library, self.layer, self.width = library, layer, outputs // 2 if gate else outputs
        self.record = LinearRecord(native.DTYPES[layer.dtype], layer.format, gate, layer.group, outputs, inputs)
        at = ctypes.byref(self.record)
        panels, groups = library.lsv_panels(at), library.lsv_scales_of_output(at)
        self.panels = torch.empty(panels * library.lsv_panel_bytes(at), dtype=torch.uint8)
        self.scales = torch.full((panels * groups * 32,), torch.nan)
        self.sums = torch.empty(panels * 32, dtype=torch.int32)
        self.record.panels, self.record.scales = self.panels.data_ptr(), self.scales.data_ptr()
        self.record.sums, self.record.bias = self.sums.data_ptr(), layer.bias.data_ptr()
        stored = layer.stored().contiguous()
        library.lsv_pack(at, stored.data_ptr(), layer.scales.data_ptr())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.full((len(x) + 1, self.width), 77, dtype=self.layer.dtype)
        self.library.lsv_linear(ctypes.byref(self.record), x.data_ptr(), x.stride(0), len(x), out.data_ptr())
        assert (out[-1] == 77).all(), "wrote past the output"
        return out[:-1]


def rows_of(count: int, inputs: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Rows in the middle of wider ones; each is the same whatever the count."""
    wide = torch.randn(count, inputs + 7, generator=torch.Generator().manual_seed(inputs)).to(dtype)
    return wide[:, :inputs]


def check_plain(packed: Packed, x: torch.Tensor) -> None:
    layer = packed.layer
    wanted = x.double() @ layer.weights.double().T + layer.bias.double()
    error = (packed(x).double() - wanted).abs()
    allowed = 2**-8 * wanted.abs() + 1e-5 * layer.weights.shape[1] ** 0.5  # the output's rounding; the sums'
    assert (error <= allowed).all()


def test_the_check_at_load_passes(libraries: dict[str, ctypes.CDLL]) -> None:
    assert libraries[EMULATED].lsv_amx_ready() == 1


@pytest.mark.parametrize("size", [(64, 96), (70, 45), (33, 704), (96, 1)], ids=str)
def test_plain_product(libraries: dict[str, ctypes.CDLL], size: tuple[int, int]) -> None:
    packed = Packed(libraries[EMULATED], Layer(PLAIN, 0, *size))
    for count in (1, 3, *ROWS):
        check_plain(packed, rows_of(count, size[1]))


@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_no_rows_are_nothing_to_do(libraries: dict[str, ctypes.CDLL], format: int, group: int) -> None:
    packed = Packed(libraries[EMULATED], Layer(format, group, 64, 128))
    assert packed(rows_of(1, 128)[:0]).shape == (0, 64)


@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_a_row_is_the_same_in_every_batch_and_team(
    libraries: dict[str, ctypes.CDLL], set_team: Callable[[int], None], format: int, group: int
) -> None:
    packed = Packed(libraries[EMULATED], Layer(format, group, 100, 736), gate=1)
    x = rows_of(ROWS[-1], 736)
    wanted = packed(x)
    for members in (1, 2, 3):
        set_team(members)
        for count in (1, 2, *ROWS):
            assert torch.equal(packed(x[:count]), wanted[:count]), (members, count)


@pytest.mark.parametrize(
    ("format", "group", "count", "outputs", "inputs"),
    [
        *((format, group, 600, 70, 64) for format, group in FORMATS),  # members split the rows
        *((format, group, 150, 40, 8192) for format, group in FORMATS),  # the inputs are cut
        (PLAIN, 0, 33, 2088, 8200),  # and the panels too
        (INT8, 128, 150, 40, 8200),  # of 129 tiles of inputs the last is a group alone
    ],
)
def test_cuts_for_the_caches_change_nothing(
    libraries: dict[str, ctypes.CDLL],
    set_team: Callable[[int], None],
    format: int,
    group: int,
    count: int,
    outputs: int,
    inputs: int,
) -> None:
    packed, x = Packed(libraries[EMULATED], Layer(format, group, outputs, inputs)), rows_of(count, inputs)
    wanted = torch.cat([packed(part) for part in x.split(24)])
    for members in (1, 2):
        set_team(members)
        assert torch.equal(packed(x), wanted), members


@pytest.mark.parametrize("gate", [0, 1])
@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
@pytest.mark.parametrize(("format", "group"), WHOLE)
def test_whole_numbers_have_the_bits_of_the_vector_kernels(
    libraries: dict[str, ctypes.CDLL], format: int, group: int, dtype: torch.dtype, gate: int
) -> None:
    for outputs, inputs in ((96, 256), (70, 200), (88, 1500)):
        layer = Layer(format, group, outputs, inputs, dtype)
        tiles, vectors = (Packed(libraries[isa], layer, gate) for isa in (EMULATED, VECTOR))
        for count in (7, *ROWS):
            x = rows_of(count, inputs, dtype)
            assert torch.equal(tiles(x), vectors(x)), (outputs, inputs, count)


@pytest.mark.parametrize("group", [64, 128, 192, 1024])
def test_groups_of_int8_have_the_bits_of_the_vector_kernels_whatever_their_size(
    libraries: dict[str, ctypes.CDLL], set_team: Callable[[int], None], group: int
) -> None:
    """The last group may have fewer tiles than the others, and a group more than a pass."""
    for outputs, inputs in ((70, 40), (64, 300), (40, 1350), (33, 2112)):
        layer = Layer(INT8, group, outputs, inputs)
        tiles, vectors = (Packed(libraries[isa], layer) for isa in (EMULATED, VECTOR))
        for count, members in ((8, 1), (17, 2), (70, 1), (70, 3)):
            set_team(members)
            x = (rows_of(count, inputs) * torch.logspace(-3, 3, inputs)).to(BF16)  # groups' scales are far apart
            found, wanted = (packed(x).view(torch.int16) for packed in (tiles, vectors))
            assert torch.equal(found, wanted), (outputs, inputs, count, members)


@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_large_outputs_are_written_past_the_caches(libraries: dict[str, ctypes.CDLL], format: int, group: int) -> None:
    """From 8 MiB on: whole panels with other stores than the last one, which is padded."""
    packed = Packed(libraries[EMULATED], Layer(format, group, 32 * 260 + 5, 32))
    x = rows_of(520, 32)
    assert torch.equal(packed(x), torch.cat([packed(part) for part in x.split(260)]))


@pytest.mark.parametrize(("format", "group"), FORMATS)
def test_zeros_and_what_is_not_a_number(libraries: dict[str, ctypes.CDLL], format: int, group: int) -> None:
    layer = Layer(format, group, 64, 128)
    x = rows_of(20, 128)
    x[3] = 0
    x[5, 60] = torch.nan
    found = Packed(libraries[EMULATED], layer)(x)
    assert torch.equal(found[3], layer.bias)
    assert found[5].isnan().all()
    assert not found[[4, 6]].isnan().any()
