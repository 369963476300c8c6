"""Products with weights of every form, against the modules' references."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from lsv.offers import KernelOffer, OpSpec
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.codebook import Codebook, CodedLinear, to_nibbles
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_testing.attention import cover_pairs
from lsv_testing.ops import check_kernel
from lsv_triton import availability, plugin
from lsv_triton.gemm.linear import TritonLinear
from lsv_triton.gemm.weights import in_tiles

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy warns of what is not finite
NIBBLES = tuple((torch.arange(-8, 8) * 0.375).tolist())
NF4 = tuple((torch.arange(-8, 8).float() ** 3 / 64).bfloat16().tolist())
BYTES = tuple(float(n) for n in range(-128, 128))
FP8 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
E5M2 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float().tolist())
WHOLE = tuple(float(n) for n in range(-8, 8))
E2M1 = tuple(sign * size for sign in (1.0, -1.0) for size in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
TABLES = {"even4": NIBBLES, "whole4": WHOLE, "table4": NF4, "e2m1": E2M1, "even8": BYTES, "fp8": FP8, "e5m2": E5M2}
# Of the largest output: sums in another order, rounded weights and results; the interpreter cuts bfloat16 off.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-9, torch.bfloat16: 2**-5}
GROUPS = (0, 32, 20, 128, 16, 64)
ROWS = (1, 16, 33, 15, 17)
SIZES = ((70, 100), (33, 64), (1, 15), (20, 133))
FACTORS: tuple[tuple[Any, ...], ...] = (
    tuple(TABLES),
    GROUPS,
    (False, True),
    (False, True),
    tuple(TOLERANCE),
    ROWS,
    SIZES,
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random_layer(
    codebook: Codebook, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, *, bias: bool = False
) -> CodedLinear:
    added = torch.nn.Parameter(torch.randn(outputs).to(dtype), requires_grad=False) if bias else None
    linear = CodedLinear(LinearLayer("q", "column", inputs, (outputs,), bias, dtype), codebook, added)
    finite = torch.tensor(codebook.table).isfinite().nonzero()[:, 0].to(torch.uint8)
    codes = finite[torch.randint(0, len(finite), (outputs, inputs))]
    groups, size = codebook.groups(inputs), max(abs(value) for value in codebook.table if math.isfinite(value))
    linear.hold(
        to_nibbles(codes) if codebook.bits == 4 else codes,
        (torch.rand(outputs, groups) + 0.5) / size,
        torch.randn(outputs, groups) / 8 if codebook.offsets else None,
        torch.randperm(inputs).int() if codebook.ordered else None,
    )
    return linear.to(device)


def packed(linear: CodedLinear) -> TritonLinear:
    kernel = TritonLinear(linear, linear.spec())
    kernel.pack()
    return kernel


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_looked_up_as_the_reference_has_them(table: str, device: torch.device) -> None:
    for group, offsets, ordered, (outputs, inputs) in itertools.product(
        (0, 32, 20), (False, True), (False, True), SIZES
    ):
        linear = random_layer(Codebook(TABLES[table], group, offsets, ordered), outputs, inputs, torch.bfloat16, device)
        ids = torch.randperm(outputs, device=device)
        wanted = linear.look_up(ids)
        linear.use(packed(linear))
        assert torch.equal(linear.look_up(ids), wanted)


def check(case: tuple[Any, ...], device: torch.device) -> None:
    table, group, offsets, ordered, dtype, rows, (outputs, inputs) = case
    linear = random_layer(
        Codebook(TABLES[table], group, offsets, ordered), outputs, inputs, dtype, device, bias=ordered
    )
    x = torch.randn(rows, inputs).to(device, dtype)
    wanted = linear.reference(x).float()
    error = (packed(linear).forward(x).float() - wanted).abs().max() / wanted.abs().max()
    assert error <= TOLERANCE[dtype], f"{case}: {error:.1e}"


@pytest.mark.row("F-431", "F-432")
def test_codebooks(device: torch.device) -> None:
    """Every two values of different factors meet."""
    for case in cover_pairs(FACTORS):
        check(case, device)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_every_coding(table: str, device: torch.device) -> None:
    for case in itertools.product([table], *FACTORS[1:-1], SIZES[:1]):
        check(case, device)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_code_has_its_meaning(dtype: torch.dtype, device: torch.device) -> None:
    """Exactly, be it NaN or infinite; and none of that comes in from behind the last input."""
    specials = float("nan"), float("inf"), float("-inf")
    for table in (*TABLES.values(), (*specials, *range(1, 14)), (*specials, *range(1, 254))):
        values = torch.tensor(table)
        codes = torch.full((len(table), 9), int(values.isfinite().nonzero()[0]), dtype=torch.uint8)
        codes[:, 5] = torch.arange(len(table))
        linear = CodedLinear(LinearLayer("q", "column", 9, (len(table),), False, dtype), Codebook(table), None)
        linear.hold(to_nibbles(codes) if len(table) == 16 else codes, torch.ones(len(table), 1))
        found = packed(linear.to(device)).forward(torch.eye(9, dtype=dtype, device=device)[[5] * 3]).cpu()
        assert torch.equal(found.nan_to_num(0.1), values.to(dtype).nan_to_num(0.1).expand(3, -1))


@pytest.mark.parametrize(
    ("dtype", "table"), [(torch.float32, "even4"), (torch.bfloat16, "fp8"), (torch.float16, "even4")], ids=str
)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype, table: str, device: torch.device) -> None:
    """One row's parts run side by side, those of many in one program."""
    offsets = table == "even4"
    kernel = packed(random_layer(Codebook(TABLES[table], 0, offsets), 60, 200, dtype, device, bias=True))
    x = torch.randn(70, 200).to(device, dtype)
    together = kernel.forward(x)
    for rows in (1, 17, 40):
        assert torch.equal(kernel.forward(x[:rows]), together[:rows]), rows
    assert torch.equal(kernel.forward(x[69:]), together[69:])


@pytest.mark.parametrize(
    ("dtype", "inputs", "bias"),
    [(torch.float32, 96, False), (torch.bfloat16, 130, True), (torch.float16, 45, True)],
    ids=str,
)
def test_plain_linear(dtype: torch.dtype, inputs: int, bias: bool, device: torch.device) -> None:
    offer = KernelOffer("linear", "cuda", "lsv_triton.gemm.linear:TritonLinear", lambda spec: None, row_invariant=True)
    fused, apart = (
        torch.randn(17, 2 * inputs, device=device).to(dtype),
        torch.randn(4, inputs, 2, device=device).to(dtype),
    )
    given = [(fused[:, :inputs],), (apart[..., 0],)]
    check_kernel(
        offer,
        lambda w: Column.even(w, ("q", "k"), inputs, 45, bias=bias).linear,
        given,
        dtype=dtype,
        tolerance=TOLERANCE[dtype],
        device=device,
    )


def test_rows_of_any_shape(device: torch.device) -> None:
    linear = random_layer(Codebook(NIBBLES, 32), 20, 64, torch.float32, device)
    reference = random_layer(Codebook(NIBBLES, 32), 20, 64, torch.float32, device)
    reference.hold(linear.codes, linear.scales)
    kernel = packed(linear)
    for x in (torch.randn(2, 3, 64), torch.randn(64), torch.randn(0, 64)):
        found = kernel.forward(x.to(device))
        torch.testing.assert_close(found, reference.reference(x.to(device)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("table", "group", "offsets", "whole"),
    [(WHOLE, 128, False, True), (WHOLE, 0, False, True), (WHOLE, 128, True, False), (WHOLE, 20, False, False),
     (NIBBLES, 128, False, False), (BYTES, 128, False, False)],
)  # fmt: skip
def test_which_codes_are_multiplied_as_whole_numbers(
    table: tuple[float, ...], group: int, offsets: bool, whole: bool, device: torch.device
) -> None:
    linear = random_layer(Codebook(table, group, offsets), 70, 256, torch.float32, device)
    assert packed(linear)._stack.packed.whole == whole


@pytest.mark.parametrize(("dtype", "power"), [(torch.bfloat16, 0x4300), (torch.float16, 0x6400)], ids=str)
@pytest.mark.parametrize("first", [-64, -8, 0, 64])
def test_codes_in_the_last_bits_of_a_power_of_two(dtype: torch.dtype, power: int, first: int) -> None:
    """What ``read_whole`` does in 16 bits, which the interpreter does not: no code is rounded."""
    codes = torch.arange(16, dtype=torch.int16)
    values = (codes | power).view(dtype)
    size = {0x4300: 128, 0x6400: 1024}[power]
    assert (values - (size - first)).tolist() == [code + first for code in range(16)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_zero_points(dtype: torch.dtype, device: torch.device) -> None:
    """Offsets that are multiples of the scales go into the codes; with one that is not, all are added to weights."""
    counts = Codebook(tuple(float(n) for n in range(16)), 64, offsets=True)
    linear = random_layer(counts, 70, 200, dtype, device)
    assert linear.offsets is not None
    for zeros, whole in ((torch.randint(0, 16, (70, 4)).float(), True), (torch.tensor([[7.5, 8, 8, 8]]), False)):
        offsets = -linear.scales.cpu() * zeros
        offsets[3], scales = 0, linear.scales.cpu()
        scales[3] = 0
        again = CodedLinear(linear.layer, counts, linear.bias)
        again.hold(linear.codes.cpu(), scales, offsets)
        again = again.to(device)
        x = torch.randn(9, 200).to(device, dtype)
        wanted, kernel = again.reference(x).float(), packed(again)
        assert kernel._stack.packed.whole == whole
        error = (kernel.forward(x).float() - wanted).abs().max() / wanted.abs().max()
        assert error <= TOLERANCE[dtype]


def test_the_bytes_of_a_step_lie_together() -> None:
    rows = torch.arange(5 * 12, dtype=torch.uint8).view(5, 12)
    tiles = in_tiles(rows, 4, 2)
    assert tiles.shape == (6, 12)
    flat = tiles.flatten().tolist()
    assert flat[:8] == [*range(4), *range(12, 16)]  # the first step of the first two outputs
    assert flat[8:16] == [*range(4, 8), *range(16, 20)]
    assert flat[24:28] == list(range(24, 28))
    assert flat[-4:] == [0] * 4


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [offer for offer in plugin.lsv_kernels() if "fp8" not in offer.load]
    offers = {(offer.op, offer.platform): offer for offer in found}
    for platform in ("cuda", "xpu"):
        for op in ("linear.coded", "linear.int8", "linear.int4", "moe"):
            supports = offers[op, platform].supports
            assert "float64 is not one of" in (supports(OpSpec(op, "float64")) or "")
            assert "not awq" in (supports(OpSpec(op, "float32", "awq+plain")) or "")
            assert supports(OpSpec(op, "bfloat16", "coded+plain", {}, frozenset({"silu"}))) is None
    monkeypatch.setattr(availability, "find_spec", lambda name: None)
    assert "Triton, which comes with PyTorch's builds for GPUs and is not installed" in (
        supports(OpSpec("moe", "float32")) or ""
    )


def test_filling_again_writes_to_the_same_storage(device: torch.device) -> None:
    linear = random_layer(Codebook(NIBBLES, 32), 20, 100, torch.float32, device)
    other = random_layer(Codebook(NIBBLES, 32), 20, 100, torch.float32, device)
    x = torch.randn(3, 100).to(device)
    wanted, kernel = other.reference(x), packed(linear)
    places = [tensor.data_ptr() for tensor in linear.buffers() if not tensor.is_meta]
    linear.hold(other.codes, other.scales)
    kernel.pack()
    assert [tensor.data_ptr() for tensor in linear.buffers() if not tensor.is_meta] == places
    torch.testing.assert_close(kernel.forward(x), wanted, rtol=1e-5, atol=1e-5)
