"""A rank reads its own part of a checkpoint: right values, and how many bytes of which files."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lsv.config import Topology
from lsv_base.errors import CheckpointError
from lsv_models import plugin
from lsv_runtime.devices.communicator import Group
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.weights import checkpoint
from lsv_runtime.weights.checkpoint import CheckpointSource, RenamedSource, SafetensorsSource, read_region
from lsv_runtime.weights.place import Part
from lsv_runtime.weights.regions import runs_of
from lsv_runtime.weights.stacks import Stack, UnfoldedSource
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_runtime.worker.load.saved import save_sharded_state
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config
from lsv_testing.tensors import TensorsSource, fill_module, place
from lsv_testing.tiny import tiny

CATALOG = catalog_of(plugin)
REGIONS = [
    ((7,), (slice(2, 5),)),
    ((7, 5), (slice(2, 5),)),
    ((7, 5), (slice(2, 5), slice(0, 5))),
    ((7, 5), (slice(2, 5), slice(1, 3))),
    ((3, 4, 5), (slice(1, 2), slice(1, 3))),
    ((3, 4, 5), (slice(0, 3), slice(0, 4), slice(2, 4))),
    ((3, 4, 5), (slice(1, 3), slice(1, 3), slice(2, 4))),
    ((3, 4, 1), (slice(1, 3), slice(1, 3))),
]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many bytes of data were read, by the name of their file."""
    found: Counter[str] = Counter()
    read_exactly = checkpoint._read_exactly

    def count(descriptor: int, room: memoryview, offset: int, path: Path) -> None:
        found[path.name] += room.nbytes
        read_exactly(descriptor, room, offset, path)

    monkeypatch.setattr(checkpoint, "_read_exactly", count)
    return found


@pytest.mark.parametrize(("shape", "region"), REGIONS, ids=str)
def test_runs_are_the_elements_of_a_region(shape: tuple[int, ...], region: tuple[slice, ...]) -> None:
    whole = torch.arange(math.prod(shape)).view(shape)
    begins, run = runs_of(region, shape)
    assert [begin + place for begin in begins for place in range(run)] == whole[region].flatten().tolist()
    assert all(begin + run < following for begin, following in itertools.pairwise(begins))


@pytest.mark.parametrize("worth", [0, 1 << 20], ids=["passed over", "read and left out"])
@pytest.mark.parametrize(("shape", "region"), REGIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_regions_of_files(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    region: tuple[slice, ...],
    worth: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "_WORTH", worth)
    tensor = (torch.randn(shape) * 10).to(dtype)
    save_file({"pad": torch.ones(3), "x": tensor}, tmp_path / "model.safetensors")
    source = RenamedSource(UnfoldedSource(SafetensorsSource(tmp_path), ()), lambda name: name)
    found = read_region(source, "x", region)
    assert torch.equal(found.view(torch.uint8), tensor[region].contiguous().view(torch.uint8))
    source.close()
    rows_alone = read_region(TensorsSource({"x": tensor}), "x", region)
    assert torch.equal(rows_alone.float(), tensor[region].float())


PARTS = ("gate", "up")
STACKS = {
    "experts": (Stack(r"(.*)\.x", PARTS), (3, 8, 5)),
    "biases": (Stack(r"(.*)\.x", PARTS), (3, 8)),
    "experts in rows": (Stack(r"(.*)\.x", PARTS, experts=3), (24, 5)),
    "uneven parts": (Stack(r"(.*)\.x", PARTS, experts=0, shares=(1, 3)), (16, 5)),
    "transposed": (Stack(r"(.*)\.x", PARTS, transposed=True), (3, 5, 8)),
    "transposed as its shape says": (Stack(r"(.*)\.x", PARTS, inputs=5), (3, 5, 8)),
    "in order as its shape says": (Stack(r"(.*)\.x", PARTS, transposed=True, inputs=5), (3, 8, 5)),
    "interleaved": (Stack(r"(.*)\.x", PARTS, interleaved=True), (3, 8, 5)),
}


@pytest.mark.parametrize("name", STACKS)
def test_regions_of_what_is_stacked(
    name: str, tmp_path: Path, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_WORTH", 0)
    stack, shape = STACKS[name]
    tensor = torch.randn(shape)
    save_file({"m.x": tensor}, tmp_path / "model.safetensors")
    source = UnfoldedSource(RenamedSource(SafetensorsSource(tmp_path), lambda name: name), [stack])
    plain = UnfoldedSource(TensorsSource({"m.x": tensor}), [stack])
    for part, info in source.tensors().items():
        for region in ((slice(1, 3),), (slice(1, 3), slice(2, 4))[: len(info.shape)]):
            read.clear()
            found = read_region(source, part, region)
            assert torch.equal(found, plain.read(part, 0, info.shape[0])[region])
            assert not stack.fitting(shape, {}).ordered or read.total() == found.nbytes
    source.close()


@pytest.mark.row("F-949")
@pytest.mark.parametrize(("inputs", "share"), [(8192, 1), (2048, 4)], ids=["long rows", "short rows"])
def test_ranks_pass_over_the_columns_of_others_where_that_pays(
    inputs: int, share: int, tmp_path: Path, read: Counter[str]
) -> None:
    weight = torch.randn(6, inputs)
    save_file({"down.weight": weight}, tmp_path / "model.safetensors")
    for rank in range(4):
        read.clear()
        w, width = place(rank=rank, size=4), inputs // 4
        row = Row(w, "down", inputs, 6, reads=(rank * width, (rank + 1) * width))
        fill_module(row, w, SafetensorsSource(tmp_path))
        assert torch.equal(row.linear.weight, weight[:, rank * width : (rank + 1) * width])
        assert read.total() == share * weight.nbytes // 4


@pytest.mark.row("F-949")
def test_ranks_pass_over_the_outputs_of_others_in_transposed_weights(tmp_path: Path, read: Counter[str]) -> None:
    weight = torch.randn(6, 8192)
    save_file({"up.weight": weight}, tmp_path / "model.safetensors")
    w = place(rank=1, size=4).transposed()
    column = fill_module(Column(w, [Part("up", 8192, 2048, 4096)], 6), w, SafetensorsSource(tmp_path))
    assert torch.equal(column.linear.weight, weight.T[2048:4096])
    assert read.total() == weight.nbytes // 4


def test_each_rank_checks_what_it_reads(tmp_path: Path) -> None:
    weight = torch.randn(6, 8192)
    weight[3, 8000] = torch.nan
    save_file({"down.weight": weight}, tmp_path / "model.safetensors")
    for rank in range(2):
        w = place(rank=rank, size=2)
        row = Row(w, "down", 8192, 6, reads=(rank * 4096, (rank + 1) * 4096))
        if rank == 0:
            fill_module(row, w, SafetensorsSource(tmp_path))
        else:
            with pytest.raises(CheckpointError, match=r"down\.weight holds weights that are not finite"):
                fill_module(row, w, SafetensorsSource(tmp_path))


def declare_rank(path: Path, rank: int, **changes: Any) -> tuple[Declared, CheckpointSource]:
    """A rank's share of a model of two ranks, and where its weights come from."""
    beside: Any = SimpleNamespace(group=Group("tp", (0, 1), rank, ""), ops=())
    config = engine_config(path, "llama", topology=Topology(tensor=2), **changes)
    declared = declare(config, CATALOG, communicator=beside)
    return declared, open_source(config, declared, CATALOG)


def needed(declared: Declared, axes: int | None = None) -> int:
    """Bytes of what a rank's pieces are, stored as float32; only of tensors of so many axes."""
    pieces = (piece for slot in declared.slots for piece in slot.pieces if axes in (None, len(piece.shape)))
    return sum(4 * math.prod(part.stop - part.start for part in piece.source) for piece in pieces)


@pytest.mark.row("F-949")
def test_ranks_read_what_they_hold_and_no_more(
    tmp_path: Path, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_WORTH", 0)
    path = tiny("llama", tmp_path / "whole")
    for rank in range(2):
        declared, source = declare_rank(path, rank)
        read.clear()
        fill(declared, source)
        assert read.total() == needed(declared) < 0.6 * (path / "model.safetensors").stat().st_size


@pytest.mark.row("F-933", "F-949")
def test_a_rank_reads_the_files_of_its_own(tmp_path: Path, read: Counter[str]) -> None:
    path, folder = tiny("llama", tmp_path / "whole"), tmp_path / "saved"
    save_sharded_state(engine_config(path, "llama", topology=Topology(tensor=2)), CATALOG, folder)
    for rank in range(2):
        declared, source = declare_rank(folder, rank, load_format="sharded_state")
        expected, whole = declare_rank(path, rank)
        fill(expected, whole)
        read.clear()
        fill(declared, source)
        assert read.total() == needed(declared)
        alike = needed(declared, axes=1)  # norms, which the first file has for all
        assert read[f"model-rank-{1 - rank}-part-0.safetensors"] == (alike if rank else 0)
        for name, weight in expected.model.named_parameters():
            assert torch.equal(declared.model.get_parameter(name), weight), name
