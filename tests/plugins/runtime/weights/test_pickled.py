"""Checkpoints that torch has saved: what they hold, and what is refused without being run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.pickled import PickledSource, pickled_files

A, B, SCALAR = torch.arange(12.0).reshape(4, 3), torch.ones(5, dtype=torch.bfloat16), torch.tensor(3)


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_are_read_as_they_were_saved(tmp_path: Path, zipped: bool):
    transposed = A.T
    tensors = {"a": A, "t": transposed, "b": B, "scalar": SCALAR, "step": 7}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    torch.save({"lr": 1.0}, tmp_path / "training_args.bin")
    source = PickledSource(tmp_path)
    assert set(source.tensors()) == {"a", "t", "b", "scalar"}
    assert (source.tensors()["t"].shape, source.tensors()["b"].dtype) == ((3, 4), torch.bfloat16)
    assert torch.equal(source.read("a", 1, 3), A[1:3])
    assert source.read("t", 0, 3).is_contiguous()
    assert torch.equal(source.read("t", 0, 3), transposed)
    assert source.read("scalar", 0, 1) == 3
    source.close()


def test_an_index_names_the_files(tmp_path: Path):
    torch.save({"a": A}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": B}, tmp_path / "pytorch_model-00002-of-00002.bin")
    names = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    assert set(PickledSource(tmp_path).tensors()) == {"a", "b"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "../a.bin"}}))
    with pytest.raises(CheckpointError, match="same folder"):
        pickled_files(tmp_path)


def test_one_file_goes_before_an_index(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    torch.save({"a": A}, tmp_path / "pytorch_model.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"b": "older.bin"}}))
    assert set(PickledSource(tmp_path).tensors()) == {"a"}
    assert "pytorch_model.bin.index.json is not read" in caplog.text


class Trap:
    """What a pickle runs when it is loaded carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", ["torch", "pickle", "noise", "list", "cut"])
def test_anything_else_is_refused(tmp_path: Path, write: str):
    file, trap = tmp_path / "pytorch_model.bin", tmp_path / "trap"
    if write == "torch":
        torch.save({"a": A, "x": Trap(trap)}, file)
    elif write == "pickle":
        file.write_bytes(pickle.dumps({"x": Trap(trap)}))
    elif write == "noise":
        file.write_bytes(bytes(range(256)) * 4)
    elif write == "list":
        torch.save([A], file)
    else:
        torch.save({"a": A}, file)
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        PickledSource(tmp_path)
    assert not trap.exists()


def test_a_folder_without_weights_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no pytorch_model"):
        PickledSource(tmp_path)
