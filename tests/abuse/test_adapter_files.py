"""Hostile adapter files: reading them takes limited time and memory, and delays no other adapter."""

import json
import os
import resource
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lsv.adapters import registry
from lsv.adapters.peft import CONFIG_BYTES, WEIGHTS_BYTES, digest
from lsv.adapters.reading import process
from lsv.adapters.reading.process import look
from lsv.adapters.registry import AdapterRegistry
from lsv.config import AdapterOptions
from lsv_base.errors import CheckpointError, LsvError
from lsv_runtime.adapters.checkpoint import read_adapter
from lsv_testing.fakes.engine import engine_config

pytestmark = pytest.mark.timeout(100)
CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
MEMORY = 300 << 20
"""Limit in bytes on the growth of this process, far below the sizes that the files claim."""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    folder = tmp_path / "good"
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}))
    tensors = {f"{MODULE}.lora_A.weight": torch.ones(4, 8), f"{MODULE}.lora_B.weight": torch.ones(8, 4)}
    save_file(tensors, folder / WEIGHTS)
    return folder


def link(folder: Path, name: str, target: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(target)


def make_fifo(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def make_sparse(folder: Path, name: str, size: int) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate(size)


def write_header(folder: Path, header: dict[str, Any], size: int) -> None:
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * size)


def overlap(folder: Path) -> None:
    """All tensors share the same bytes, so that a small file claims to hold a large one."""
    entry = {"dtype": "F32", "shape": [4, 1024], "data_offsets": [0, 16384]}
    write_header(folder, {f"base_model.model.m{n}.lora_A.weight": entry for n in range(50_000)}, 16384)


def pickle_bomb(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with zipfile.ZipFile(folder / PICKLED, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("archive/data.pkl", "w", force_zip64=True) as file:
            for _ in range(1 << 7):
                file.write(b"\0" * (1 << 24))
        archive.writestr("archive/version", "3\n")


def expand(folder: Path) -> None:
    """A tensor of one number that claims to be 32 GB."""
    (folder / WEIGHTS).unlink()
    stretched = torch.zeros(1).expand(1 << 16, 1 << 17)
    torch.save({f"{MODULE}.lora_A.weight": stretched, f"{MODULE}.lora_B.weight": stretched}, folder / PICKLED)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "config is a pipe": (lambda folder: make_fifo(folder, CONFIG), "is a named pipe: expected a regular file"),
    "weights are a pipe": (lambda folder: make_fifo(folder, WEIGHTS), "is a named pipe: expected a regular file"),
    "config is a device": (lambda folder: link(folder, CONFIG, "/dev/zero"), "is a device: expected a regular file"),
    "weights are a device": (lambda folder: link(folder, WEIGHTS, "/dev/zero"), "is a device: expected a regular file"),
    "config is a folder": (lambda folder: link(folder, CONFIG, "/"), "is a folder: expected a regular file"),
    "config is a loop": (lambda folder: link(folder, CONFIG, CONFIG), "can't open"),
    "config is endless": (lambda folder: make_sparse(folder, CONFIG, CONFIG_BYTES + 1), "over the limit of 1048576"),
    "weights are sparse": (lambda folder: make_sparse(folder, WEIGHTS, 1 << 38), f"over the limit of {WEIGHTS_BYTES}"),
    "tensors overlap": (overlap, "its tensors overlap"),
    "a pickle bomb": (pickle_bomb, "can't be read"),
    "a stretched tensor": (expand, "the configuration gives rank 4"),
    "config is nested": (lambda folder: (folder / CONFIG).write_text("[" * 100_000), "is not valid JSON"),
}  # fmt: skip


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    began, peak = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - began < seconds
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10 < MEMORY


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_files_are_refused_by_name_within_bounds(how: str, good: Path) -> None:
    spoil, problem = HOSTILE[how]
    spoil(good)
    with bounded(60), pytest.raises(CheckpointError) as caught:
        read_adapter(good, 16)
    assert problem in caught.value.message
    assert str(good) in caught.value.message


@pytest.mark.parametrize("how", ["config is a pipe", "config is a device", "weights are sparse", "config is endless"])
def test_hostile_files_are_not_hashed_either(how: str, good: Path) -> None:
    HOSTILE[how][0](good)
    for inspect in (look, digest):
        with bounded(10), pytest.raises(CheckpointError):
            inspect(good)


@pytest.mark.parametrize("pickled", [False, True])
def test_reading_returns_the_contents_of_the_files(pickled: bool, good: Path) -> None:
    a, b = torch.randn(4, 1 << 20).bfloat16(), torch.randn(1 << 20, 4, dtype=torch.float64)
    tensors = {f"{MODULE}.lora_A.weight": a, f"{MODULE}.lora_B.weight": b, "lm_head.weight": torch.randn(0, 5)}
    (good / WEIGHTS).unlink()
    torch.save(tensors, good / PICKLED) if pickled else save_file(tensors, good / WEIGHTS)
    pairs, found = read_adapter(good, 16)
    assert found == digest(good) == look(good)
    assert torch.equal(pairs["model.layers.0.self_attn.q_proj"].a, a)
    assert torch.equal(pairs["model.layers.0.self_attn.q_proj"].b, b.float() * 2)
    copy = pairs["lm_head"].copy
    assert copy is not None
    assert copy.shape == (0, 5)


def test_the_reading_process_is_killed_after_its_time_limit(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SECONDS", 0.01)  # Python itself takes longer
    with pytest.raises(CheckpointError, match=r"the process that reads it took more than 0\.01 s"):
        look(good)


def test_a_slow_adapter_delays_no_other(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def wait(folder: Path, mode: str) -> bytes:
        assert folder != good.parent or go.wait(60)
        return b""

    monkeypatch.setattr(registry, "look", wait)
    adapters = AdapterRegistry(engine_config(adapters=AdapterOptions(host=4)), lambda *_: None, tuple)
    told: list[tuple[str, LsvError | None]] = []
    try:
        adapters.begin("slow", str(good.parent), lambda _, error: told.append(("slow", error)))
        adapters.begin("quick", str(good), lambda _, error: told.append(("quick", error)))
        began = time.monotonic()
        while not told and time.monotonic() - began < 10:
            adapters.advance()
            time.sleep(0.001)
        assert told == [("quick", None)]
    finally:
        go.set()
    while len(told) < 2:
        adapters.advance()
        time.sleep(0.001)
    assert told[1] == ("slow", None)
