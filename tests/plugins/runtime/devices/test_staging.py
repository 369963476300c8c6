"""Pinned memory that is kept: what is sent and fetched through it arrives, and nothing is overwritten under a copy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lsv_runtime.devices import staging
from lsv_runtime.devices.staging import close_staging, fetch, open_staging, overwrite, send
from lsv_runtime.emulation.fakes import FakeRuntime, emulated_device
from lsv_runtime.emulation.placement.device import Placement, placement


class Device:
    """What of a device is asked for here; counts its events."""

    pinned = True

    def __init__(self) -> None:
        self.torch_device, self.runtime = emulated_device(0), FakeRuntime(1, 1 << 30)
        self.events = 0

    def event(self) -> object:
        self.events += 1
        mark = self.runtime.Event()
        mark.record()
        return mark


@pytest.fixture
def placed() -> Placement:
    found = placement()
    if found is None:
        pytest.skip("there is no C++ compiler")
    return found


@pytest.fixture
def device(placed: Placement, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr(staging, "_LAP", 1024)
    made = Device()
    open_staging(made)
    yield made
    close_staging(made)
    placed.finish()


def test_memory_is_used_again_once_its_copies_are_made(device: Device, placed: Placement) -> None:
    """A copy under which memory changes is an error of the emulated device."""
    values = [np.full(40, number) for number in range(60)]
    pinned, waits = placed.pinned_allocations, placed.waits
    sent = [send(one, device.torch_device) for one in values]
    assert placed.pinned_allocations == pinned + 1
    assert device.events == 19, "three of 320 bytes in a lap"
    assert placed.waits == waits + 16, "for laps that are used again"
    placed.finish()
    assert [one.tolist() for one in sent] == [one.tolist() for one in values]


def test_an_unmarked_lap_would_be_overwritten_under_its_copies(
    device: Device, placed: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "event", lambda self: None)
    for number in range(60):
        send(np.full(40, number), device.torch_device)
    with pytest.raises(RuntimeError, match="pinned memory was written to"):
        placed.finish()


def test_tensors_are_overwritten_in_place_and_large_ones_have_memory_of_their_own(
    device: Device, placed: Placement
) -> None:
    tensor = torch.zeros(3, 200, dtype=torch.int64, device=device.torch_device)
    overwrite(tensor, np.arange(600).reshape(3, 200))
    waits = placed.waits
    overwrite(tensor[0, :4], np.arange(4)[::-1])
    assert placed.waits == waits
    assert tensor[:, :4].tolist() == [[3, 2, 1, 0], [200, 201, 202, 203], [400, 401, 402, 403]]


def test_fetched_memory_is_used_again_when_it_was_read(device: Device, placed: Placement) -> None:
    here = torch.arange(6, device=device.torch_device).view(2, 3)
    one, other = fetch(here), fetch(here + 10)
    pinned = placed.pinned_allocations
    placed.finish()
    first = one.read()
    again = fetch(here + 20)
    assert placed.pinned_allocations == pinned
    placed.finish()
    assert [x.tolist() for x in (first, other.read(), again.read())] == [
        [[place + more for place in row] for row in ([0, 1, 2], [3, 4, 5])] for more in (0, 10, 20)
    ]


def test_without_staging_copies_are_what_torch_makes_of_them(device: Device, placed: Placement) -> None:
    later = Device()
    open_staging(later)
    close_staging(device)
    assert staging._open[device.torch_device]._device is later, "the device has been opened again"
    close_staging(later)
    pinned = placed.pinned_allocations
    sent = send(np.arange(3), device.torch_device)
    assert fetch(sent + 1).read().tolist() == [1, 2, 3]
    host = np.arange(3)
    assert send(host, torch.device("cpu")).data_ptr() == host.ctypes.data
    assert placed.pinned_allocations == pinned
