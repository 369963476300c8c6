"""Tensors of an emulated device: what would fail on a card fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lsv_runtime.emulation.fakes import FakeRuntime, StrictFake
from lsv_runtime.emulation.placement.device import Placement, as_kernel, on_host, placement


@pytest.fixture
def placed() -> Placement:
    found = placement()
    if found is None:
        pytest.skip("there is no C++ compiler")
    return found


@pytest.fixture
def device(placed: Placement) -> torch.device:
    return placed.torch_device(0)


def test_tensors_are_computed_on_where_they_are(device: torch.device) -> None:
    x = torch.arange(12.0, device=device).view(3, 4)
    assert x.device == device
    assert not x.is_cpu
    for found, expected in [
        (x @ x.T, [[14.0, 38.0, 62.0], [38.0, 126.0, 214.0], [62.0, 214.0, 366.0]]),
        (x[1:, ::2], [[4.0, 6.0], [8.0, 10.0]]),
        (x.index_select(0, torch.tensor([2, 0], device=device)), [[8.0, 9.0, 10.0, 11.0], [0.0, 1.0, 2.0, 3.0]]),
        (torch.cat((x[0], x[1])).topk(2).values, [7.0, 6.0]),
        (x.view(torch.int32).view(torch.float32)[0], [0.0, 1.0, 2.0, 3.0]),
    ]:
        assert found.device == device
        assert found.tolist() == expected


def test_convolutions(device: torch.device) -> None:
    x, weight, bias = torch.randn(1, 3, 9), torch.randn(4, 3, 3), torch.randn(4)
    found = torch.nn.functional.conv1d(x.to(device), weight.to(device), bias.to(device), stride=2)
    assert found.device == device
    assert torch.equal(found.cpu(), torch.nn.functional.conv1d(x, weight, bias, stride=2))


def test_large_zeros_take_nothing_of_the_host(placed: Placement, device: torch.device) -> None:
    before, held = _resident(), placed.held(0)
    x = torch.zeros(1 << 28, dtype=torch.uint8, device=device)
    assert placed.held(0) - held == 1 << 28
    assert _resident() - before < 1 << 26
    assert x[:: 1 << 20].sum().item() == 0


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_views_share_memory(device: torch.device) -> None:
    x = torch.zeros(4, 4, device=device)
    x[1:3, 1].add_(1)
    x.view(2, 8).chunk(2, dim=1)[0].fill_(5)
    x.T[3].copy_(torch.full((4,), 7.0, device=device))
    assert x.tolist() == [[5, 5, 5, 7], [0, 1, 0, 7], [5, 5, 5, 7], [0, 0, 0, 7]]


def test_an_output_grows_as_needed(device: torch.device) -> None:
    out = torch.empty(0, device=device)
    torch.index_select(torch.arange(6.0, device=device), 0, torch.tensor([4, 1], device=device), out=out)
    assert out.tolist() == [4.0, 1.0]


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat((x, torch.ones(3))),
        lambda x: x.index_select(0, torch.tensor([1])),
        lambda x: torch.where(torch.tensor([True, False, True]), x, x),
        lambda x: x + torch.ones(3, device="emulated:1"),
    ],
)
def test_tensors_of_host_and_device_do_not_mix(device: torch.device, mix) -> None:
    with pytest.raises(RuntimeError, match="device"):
        mix(torch.ones(3, device=device))


def test_the_host_does_not_read_without_a_copy(device: torch.device) -> None:
    with pytest.raises(TypeError, match="numpy"):
        torch.ones(3, device=device).numpy()


def test_waiting_is_counted(placed: Placement, device: torch.device) -> None:
    x = torch.ones(4, device=device)
    before = placed.waits
    y = (x * 2).sum() + x.mean()
    assert placed.waits == before
    assert y.item() == 9.0
    assert placed.waits == before + 1
    x.nonzero()
    x.cpu()
    torch.ones(2).to(device, non_blocking=True)
    assert placed.waits == before + 4, "a shape, a copy to the host, and a copy from memory that is not pinned"
    torch.ones(2).pin_memory().to(device, non_blocking=True)
    assert placed.waits == before + 4


def test_a_copy_is_there_once_it_was_waited_for(placed: Placement, device: torch.device) -> None:
    x = torch.arange(4, device=device)
    host = torch.empty(4, dtype=torch.int64, pin_memory=True).copy_(x, non_blocking=True)
    mark = placed.mark()
    x.add_(10)
    later = torch.empty(4, dtype=torch.int64, pin_memory=True).copy_(x, non_blocking=True)
    assert host.tolist() != [0, 1, 2, 3], "read too early"
    placed.finish(mark)
    assert host.tolist() == [0, 1, 2, 3], "as it was when the copy was asked for"
    assert later.tolist() != [10, 11, 12, 13]
    placed.finish()
    assert later.tolist() == [10, 11, 12, 13]


def test_an_event_waits_for_what_came_before_it(device: torch.device) -> None:
    runtime = FakeRuntime(2, 1 << 30)
    host = torch.empty(2, pin_memory=True).copy_(torch.ones(2, device=device), non_blocking=True)
    event = runtime.Event()
    event.record()
    assert host.tolist() != [1.0, 1.0]
    event.synchronize()
    assert host.tolist() == [1.0, 1.0]


def test_memory_under_a_copy_must_not_change(placed: Placement, device: torch.device) -> None:
    source = torch.zeros(4).pin_memory()
    source.to(device, non_blocking=True)
    source[0] = 1
    with pytest.raises(RuntimeError, match="pinned memory was written to"):
        placed.finish()
    placed.finish()


def test_kernels_take_tensors_of_the_device(device: torch.device) -> None:
    def double(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert x.is_cpu
        out.copy_(x * 2)
        return x * 3

    x, out = torch.ones(2, device=device), torch.empty(2, device=device)
    result = as_kernel(double)(x, out)
    assert (result.device, result.tolist(), out.tolist()) == (device, [3.0, 3.0], [2.0, 2.0])
    with pytest.raises(RuntimeError, match="tensor of the host"):
        as_kernel(double)(x, torch.empty(2))
    assert on_host(x).data_ptr() == x.data_ptr()


def test_calls_of_a_library_that_computes_are_kernels(device: torch.device) -> None:
    class Library(StrictFake):
        computes = True

        def scale(self, x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
            self.record("scale")
            assert x.is_cpu
            return x * by

    library, x, by = Library(), torch.ones(2), torch.full((2,), 3.0)
    assert library.scale(x.to(device), by=by.to(device)).tolist() == [3.0, 3.0]
    assert library.scale(x, by=by).tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="tensor of the host"):
        library.scale(x.to(device), by=by)


def test_memory_is_counted_by_device(placed: Placement) -> None:
    runtime = FakeRuntime(2, 1 << 20)
    held = placed.held(1)
    x = torch.zeros(1000, device=placed.torch_device(1))
    assert placed.held(1) == held + 4000
    assert runtime.mem_get_info(1) == ((1 << 20) - placed.held(1), 1 << 20)
    runtime.reset_peak_memory_stats(1)
    y = x + 1
    del y
    assert placed.held(1) == held + 4000
    assert runtime.max_memory_allocated(1) >= held + 8000
    del x
    assert runtime.memory_allocated(1) == held
