"""Reading safetensors: right values by rows, and files that lie about themselves."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.checkpoint import DummySource, SafetensorsSource
from lsv_runtime.weights.place import Part
from lsv_testing.tensors import place
from suite.files import nothing_left_open

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int32, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
def test_rows_are_read_as_they_were_written(dtype, tmp_path):
    tensor = (torch.randn(7, 3) * 10).to(dtype)
    save_file({"pad": torch.ones(3), "x": tensor, "scalar": torch.tensor(2.5)}, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    assert source.tensors()["x"].shape == (7, 3)
    assert source.tensors()["x"].dtype == dtype
    assert torch.equal(source.read("x", 2, 5).view(torch.uint8), tensor[2:5].view(torch.uint8))
    assert source.read("scalar", 0, 1) == 2.5
    source.close()


def test_an_index_names_the_files(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(2)}, tmp_path / "two.safetensors")
    save_file({"c": torch.zeros(2)}, tmp_path / "unlisted.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    assert set(SafetensorsSource(tmp_path).tensors()) == {"a", "b"}


def write_index(folder, names):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a": "../one.safetensors"}, "same folder"),
        ({"a": "/etc/passwd"}, "same folder"),
        ({"a": "absent.safetensors"}, "can't open"),
        ({"a": "one.safetensors", "b": "one.safetensors"}, "no file has: b"),
        ([], "weight_map"),
    ],
)
def test_a_wrong_index_is_refused(names, message, tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    write_index(tmp_path, names)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsSource(tmp_path)


def write_raw(folder, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"x": {**ENTRY, "data_offsets": [0, 16]}}, "does not fit"),
        ({"x": {**ENTRY, "data_offsets": [8, 16]}}, "does not fit"),
        ({"x": {**ENTRY, "shape": [3]}}, "does not fit"),
        ({"x": {**ENTRY, "shape": [-2]}}, "malformed"),
        ({"x": {**ENTRY, "shape": [1 << 40, 1 << 40]}}, "does not fit"),
        ({"x": {**ENTRY, "data_offsets": [8, 0]}}, "does not fit"),
        ({"x": {**ENTRY, "data_offsets": [0]}}, "malformed"),
        ({"x": {**ENTRY, "dtype": "F7"}}, "F7"),
        ({"x": "F32"}, "malformed"),
        ([], "JSON object"),
        (b"{not json", "not valid JSON"),
    ],
)
def test_a_header_that_lies_is_refused(header, message, tmp_path):
    write_raw(tmp_path, header, bytes(8))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("length", [1 << 62, 500, 1 << 40])
def test_a_header_longer_than_the_file_is_refused(length, tmp_path):
    write_raw(tmp_path, {"x": ENTRY}, bytes(8), length)
    with pytest.raises(CheckpointError, match="cut short"):
        SafetensorsSource(tmp_path)


def test_a_file_that_shrinks_is_noticed(tmp_path):
    save_file({"x": torch.ones(100)}, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate(300)
    with pytest.raises(CheckpointError, match="became shorter"):
        source.read("x", 0, 100)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="load-format dummy"):
        SafetensorsSource(tmp_path)


def test_dummy_weights_depend_on_seed_and_name_only():
    w = place()
    Column(w, [Part("a", 4, 0, 4), Part("b", 4, 0, 4)], 6)
    source, again, other = (DummySource(w.declaration.slots, seed) for seed in (1, 1, 2))
    a = source.read("a.weight", 0, 4)
    assert torch.equal(a, again.read("a.weight", 0, 4))
    assert not torch.equal(a, other.read("a.weight", 0, 4))
    assert not torch.equal(a, source.read("b.weight", 0, 4))
    assert 0.005 < a.std() < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int32])
def test_dummy_weights_are_the_same_in_whatever_parts_they_are_read(dtype):
    w = place(dtype=dtype)
    Column(w, [Part("a", 1100, 0, 1100)], 1000)
    source = DummySource(w.declaration.slots)
    whole = source.read("a.weight", 0, 1100).float()
    assert torch.equal(whole[1000:1090], source.read("a.weight", 1000, 1090).float())
    assert len(whole.unique(dim=0)) == 1100
    source.read("a.weight", 0, 1100).zero_()
    assert torch.equal(whole, source.read("a.weight", 0, 1100).float()), "what was read is the reader's own"


def test_a_source_that_can_not_be_opened_leaves_no_file_open(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model-2.safetensors").write_bytes(b"\x08" + bytes(15))
    with nothing_left_open(), pytest.raises(CheckpointError):
        SafetensorsSource(tmp_path)
