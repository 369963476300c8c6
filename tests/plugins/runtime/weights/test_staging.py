"""Weights on their way to a device with memory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lsv_runtime.emulation.fakes import FakeRuntime, emulated_device
from lsv_runtime.emulation.placement.device import placement
from lsv_runtime.weights import staging
from lsv_runtime.weights.staging import Staging


class Device:
    """Counts how often it is waited for."""

    def __init__(self) -> None:
        self.torch_device, self.runtime = emulated_device(0), FakeRuntime(1, 1 << 30)
        self.waits = 0

    def synchronize(self) -> None:
        self.runtime.synchronize(0)
        self.waits += 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    if placement() is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(staging, "BYTES", 1024)
    return Device()


def test_values_arrive_and_memory_is_filled_again_after_a_wait(device: Device) -> None:
    """A copy under which memory changes is an error of the emulated device."""
    through = Staging(device)
    values = [torch.full((10, 10), float(number)) for number in range(20)]
    places = [torch.zeros(10, 10, device=device.torch_device) for _ in values]
    for place, one in zip(places, values, strict=True):
        through.copy_to(place, one)
    device.synchronize()
    assert [place.cpu().unique().tolist() for place in places] == [[float(number)] for number in range(20)]
    assert device.waits == 10, "two of 400 bytes at a time"


def test_dtypes_and_shapes_are_those_of_the_place(device: Device) -> None:
    through = Staging(device)
    whole = torch.zeros(4, 6, dtype=torch.bfloat16, device=device.torch_device)
    through.copy_to(whole[1:3, 2:4], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    through.copy_to(whole[0], torch.tensor(7.0))
    large = torch.zeros(1000, device=device.torch_device)
    through.copy_to(large, torch.arange(1000.0))
    device.synchronize()
    assert whole.tolist() == [[7.0] * 6, [0, 0, 1, 2, 0, 0], [0, 0, 3, 4, 0, 0], [0] * 6]
    assert large.tolist() == list(range(1000))


def test_loading_waits_for_the_device_once(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each tensor, as copies from memory that is not pinned do."""
    from lsv import LLM
    from lsv_runtime.weights.fill import Filler
    from lsv_testing.tiny import tiny

    placed, fill, waits = placement(), Filler.fill, list[int]()
    assert placed is not None

    def watch(*args: object) -> None:
        before = placed.waits
        fill(*args)  # type: ignore[arg-type]
        waits.append(placed.waits - before)

    monkeypatch.setattr(staging, "BYTES", 16 << 20)
    monkeypatch.setattr(Filler, "fill", watch)
    with LLM(str(tiny("llama", tmp_path)), platform="cuda", emulate=True, max_model_len=64, num_gpu_blocks_override=8,
             skip_tokenizer_init=True, enforce_eager=True):  # fmt: skip
        pass
    assert waits == [1], "for the tables of the rotary embedding, which are made on the host"
