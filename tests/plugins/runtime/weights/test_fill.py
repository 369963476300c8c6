"""Filling: chunks, ties, reloading in place, kernels that pack, and how much memory it takes."""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.ops import Kernel
from lsv_runtime.weights import fill
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.finite import check_finite
from lsv_runtime.weights.place import Part, Piece
from lsv_testing.tensors import TensorsSource, fill_module, place


@pytest.mark.parametrize("chunk", [1, 40, 100])
def test_big_tensors_come_in_chunks(chunk, monkeypatch):
    monkeypatch.setattr(fill, "_CHUNK_BYTES", chunk)
    weight = torch.randn(9, 4)
    source = TensorsSource({"q.weight": weight})
    w = place()
    column = fill_module(Column(w, [Part("q", 9, 2, 9)], 4), w, source)
    assert torch.equal(column.linear.weight, weight[2:])
    assert all((last - first) * 16 <= max(chunk, 16) for _, first, last in source.reads)
    assert min(first for _, first, _ in source.reads) == 2


def test_a_piece_may_be_cut_from_one_of_those_that_a_tensor_stacks():
    stack = torch.randn(3, 5, 4)
    w = place()
    piece = Piece("stack", (3, 5, 4), (slice(1, 4), slice(0, 2)), (slice(0, 3), slice(0, 2)), of=2)
    holder = nn.Module()
    holder.weight = w.declare((3, 2), (piece,))
    Filler(holder, w.declaration.slots).fill(TensorsSource({"stack": stack}), w.device)
    assert torch.equal(holder.weight, stack[2, 1:4, :2])


def test_filling_again_writes_to_the_same_storage():
    w = place()
    column = Column(w, [Part("q", 2, 0, 2)], 4)
    filler = Filler(column, w.declaration.slots)
    filler.fill(TensorsSource({"q.weight": torch.ones(2, 4)}), w.device)
    weight = column.linear.weight
    filler.fill(TensorsSource({"q.weight": torch.full((2, 4), 2.0)}), w.device)
    assert column.linear.weight is weight
    assert weight.eq(2).all()


def test_progress_counts_slots():
    w = place()
    mlp, told = GatedMLP(w, 8, 12, "silu"), []
    source = DummySource(w.declaration.slots)
    Filler(mlp, w.declaration.slots).fill(source, w.device, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


class Tied(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.embed = Embed(w / "e", 6, 4)
        self.head = Head(w / "h", 6, 4, tied=self.embed)


def test_tied_weights_share_storage():
    w = place()
    model = fill_module(Tied(w), w, *(TensorsSource({"e.weight": torch.full((6, 4), value)}) for value in (1.0, 2.0)))
    assert model.head.linear.weight is model.embed.weight
    assert model.embed.weight.eq(2).all()


class Transposed(Kernel):
    """A kernel that keeps the transposed weight and lets the plain one go."""

    def __init__(self, module):
        self.module = module

    def pack(self):
        self.module.keep("packed", self.module.release("weight").T.contiguous())

    def forward(self, x):
        return x @ self.module.packed


def test_a_kernel_packs_once_filled_and_again_in_place():
    w = place()
    column = Column(w, [Part("q", 8, 0, 8)], 4)
    column.linear.use(Transposed(column.linear))
    weight, x = torch.randn(8, 4), torch.randn(3, 4)
    filler = Filler(column, w.declaration.slots)
    filler.fill(TensorsSource({"q.weight": weight}), w.device)
    assert column.linear.weight.is_meta
    address = column.linear.packed.data_ptr()
    torch.testing.assert_close(column(x), x @ weight.T)
    filler.fill(TensorsSource({"q.weight": 2 * weight}), w.device)
    torch.testing.assert_close(column(x), 2 * x @ weight.T)
    assert column.linear.packed.data_ptr() == address


def test_a_kernel_may_pack_a_tied_head():
    w = place()
    model = Tied(w)
    model.head.linear.use(Transposed(model.head.linear))
    filler = Filler(model, w.declaration.slots)
    for weight in (torch.randn(6, 4), torch.randn(6, 4)):
        filler.fill(TensorsSource({"e.weight": weight}), w.device)
        assert torch.equal(model.embed.weight, weight)
        assert torch.equal(model.head.linear.packed, weight.T)


class Taking(Transposed):
    """The same, which says so, and remembers where weights lay."""

    def __init__(self, module):
        super().__init__(module)
        self.seen = []

    def takes(self, name):
        return name == "weight"

    def pack(self):
        self.seen.append(self.module.weight.data_ptr())
        super().pack()


def test_weights_that_kernels_take_pass_through_the_same_memory():
    w = place()
    sizes = {"q": 8, "k": 5, "v": 8}
    columns = nn.ModuleList(Column(w, [Part(name, size, 0, size)], 4) for name, size in sizes.items())
    for column in columns:
        column.linear.use(Taking(column.linear))
    filler = Filler(columns, w.declaration.slots)
    for _ in range(2):
        weights = {f"{name}.weight": torch.randn(size, 4) for name, size in sizes.items()}
        filler.fill(TensorsSource(weights), w.device)
        for column, weight in zip(columns, weights.values(), strict=True):
            assert torch.equal(column.linear.packed, weight.T)
    first, *others = (column.linear.kernel.seen for column in columns)
    assert others == [first, first]
    assert not len(filler._passing)


def test_a_tied_weight_has_memory_of_its_own():
    w = place()
    model = Tied(w)
    model.head.linear.use(Taking(model.head.linear))
    filler, weight = Filler(model, w.declaration.slots), torch.randn(6, 4)
    filler.fill(TensorsSource({"e.weight": weight}), w.device)
    assert torch.equal(model.embed.weight, weight)


class WholeBlock(Kernel):
    """A kernel for a whole MLP: it owns the weights of the layers below."""

    def __init__(self, mlp):
        self.mlp = mlp
        self.packs = 0

    def pack(self):
        self.packs += 1
        self.gate_up = self.mlp.gate_up.linear.release("weight")
        self.down = self.mlp.down.linear.release("weight")

    def forward(self, x):
        gate, up = (x @ self.gate_up.T).chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up) @ self.down.T


def test_a_composite_kernel_owns_the_weights_below():
    w, plain = place(), place()
    mlp, reference = (GatedMLP(each, 8, 12, "silu") for each in (w, plain))
    kernel = WholeBlock(mlp)
    mlp.use(kernel)
    fill_module(mlp, w, DummySource(w.declaration.slots))
    fill_module(reference, plain, DummySource(w.declaration.slots))
    x = torch.randn(3, 8)
    torch.testing.assert_close(mlp(x), reference(x))
    assert kernel.packs == 1
    assert all(parameter.is_meta for parameter in mlp.parameters())


MEASURE = """
import resource, sys
import torch
from lsv_runtime.weights.checkpoint import SafetensorsSource
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.finite import check_finite
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.place import Part, Piece
from lsv_runtime.ops import Kernel
from lsv_testing.tensors import fill_module, place
from pathlib import Path

torch.set_num_threads(1)
layers, size = 12, 2048
w = place(dtype=torch.bfloat16)
model = torch.nn.ModuleList(Column(w / i, [Part("q", size, 0, size)], size) for i in range(layers))
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
before = peak()
fill_module(model, w, SafetensorsSource(Path(sys.argv[1])))
print(peak() - before, sum(parameter.nbytes for parameter in model.parameters()))
"""


@pytest.mark.row("F-400")
def test_peak_memory_is_the_model_and_one_layer(tmp_path):
    """A 200 MB float32 checkpoint becomes a 100 MB model; mapping or reading it whole would show."""
    from safetensors.torch import save_file

    layers, size = 12, 2048
    save_file(
        {f"{i}.q.weight": torch.full((size, size), float(i)) for i in range(layers)}, tmp_path / "model.safetensors"
    )
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    grown, held = map(int, run.stdout.split())
    layer = size * size * 4
    assert held == layers * size * size * 2
    assert grown < held + 2 * layer + (16 << 20)


PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2)
NOT_FINITE = [*((dtype, value) for dtype in PLAIN for value in (torch.nan, torch.inf, -torch.inf))]


@pytest.mark.parametrize(("dtype", "value"), [*NOT_FINITE, (torch.float8_e4m3fn, torch.nan)], ids=str)
def test_a_weight_that_is_not_finite_is_refused_by_name(dtype: torch.dtype, value: float) -> None:
    weight = torch.randn(9, 4)
    check_finite("q.weight", weight.to(dtype), dtype)
    weight[7, 3] = value
    with pytest.raises(CheckpointError, match=r"q\.weight holds weights that are not finite"):
        check_finite("q.weight", weight.to(dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_with_nan_does_not_load(dtype: torch.dtype) -> None:
    weight = torch.randn(9, 4, dtype=dtype)
    weight[3, 2] = torch.nan
    w = place()
    with pytest.raises(CheckpointError, match=re.escape("q.weight holds weights that are not finite")):
        fill_module(Column(w, [Part("q", 9, 0, 9)], 4), w, TensorsSource({"q.weight": weight}))


def test_a_weight_too_large_for_the_dtype_is_refused() -> None:
    largest = torch.tensor([-65504.0, 1.0], dtype=torch.bfloat16)
    check_finite("q.weight", torch.tensor([-65504.0, 1.0]), torch.float16)
    check_finite("q.weight", largest * 2, torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"q\.weight holds weights as large as 131072, which float16 can't hold"):
        check_finite("q.weight", largest * 2, torch.float16)
    check_finite("codes", torch.full((2,), 255, dtype=torch.uint8), torch.uint8)
    check_finite("nothing", torch.empty(0, 4), torch.float32)
