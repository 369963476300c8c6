"""A model's own checkpoint and those of its parts read as one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from lsv_runtime.weights.checkpoint import RegionSource, SafetensorsSource
from lsv_runtime.weights.naming import rename
from lsv_runtime.weights.parts import PartedSource


def open_tensors(folder: Path, **tensors: float) -> SafetensorsSource:
    """Of each name a tensor [4, 3] that counts from a number."""
    folder.mkdir()
    made = {name.replace("__", "."): torch.arange(12.0).view(4, 3) + first for name, first in tensors.items()}
    save_file(made, folder / "model.safetensors")
    return SafetensorsSource(folder)


def test_a_tensor_of_the_own_checkpoint_is_read_there_whatever_its_name(tmp_path: Path) -> None:
    own = open_tensors(tmp_path / "own", between=100, tower__first=200)
    text = open_tensors(tmp_path / "text", first=300, second=400)
    audio = open_tensors(tmp_path / "audio", encoder__first=500, encoder__second=600, decoder__first=700)
    parts = {"text": text, "tower": audio}
    source = PartedSource(own, parts, lambda name: rename(name, (("tower.encoder", "tower"),)))
    assert isinstance(source, RegionSource)
    found = {name: float(source.read(name, 1, 2)[0, 0]) - 3.0 for name in source.tensors()}
    assert found == {
        "between": 100.0, "tower.first": 200.0, "text.first": 300.0, "text.second": 400.0,
        "tower.encoder.second": 600.0, "tower.decoder.first": 700.0,
    }  # fmt: skip
    assert source.tensors()["text.first"].shape == (4, 3)
    assert source.read_region("text.second", (slice(1, 3), slice(2, 3))).tolist() == [[405.0], [408.0]]
    assert source.shadowed == {"text": frozenset(), "tower": {"tower.first"}}
    assert source.added == {"text": {"text.first", "text.second"}, "tower": {"tower.second", "tower.decoder.first"}}
    source.close()
    assert not any(one._files for one in (own, text, audio)), "all are closed"
