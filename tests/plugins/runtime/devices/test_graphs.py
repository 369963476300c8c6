"""Captured steps: what a device does with one that fails or replays other values, and what memory they share."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv.capabilities import DeviceInfo
from lsv_runtime.devices.accelerator import Accelerator
from lsv_runtime.devices.graphs import Graphs
from lsv_runtime.devices.shapes import Shape
from lsv_runtime.emulation.fakes import FakeCapturing, FakeGraph

SHAPE = Shape("decode", 4, 1, 8)


class Runtime(FakeCapturing):
    def __init__(self) -> None:
        super().__init__(1, 1 << 30)

    def set_stream(self, stream: object, /) -> None:
        self.record("set_stream", stream)
        super().set_stream(stream)


def open_device() -> tuple[Accelerator, Runtime]:
    runtime = Runtime()
    graphs = Graphs(lambda: FakeGraph(runtime), runtime)
    device = Accelerator(DeviceInfo(0, "a GPU", 1 << 30), torch.device("cpu"), runtime, graphs=graphs, graph_rows=8)
    return device, runtime


@pytest.mark.row("F-982")
def test_a_step_that_cannot_be_captured_runs_op_by_op_on_the_stream_of_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device, runtime = open_device()
    values, stream = torch.ones(3), runtime.current_stream()

    def step() -> Tensor:
        return values * float(values.sum())

    assert device.captures
    assert device.compile(step, SHAPE, eager=False) is step
    assert "no graphs on a GPU: the step of 4 rows can't be captured" in caplog.text
    assert runtime.current_stream() is stream
    names = [name for name, _ in runtime.log]
    assert "synchronize" in names[names.index("set_stream") :], "what the capture left behind is waited for"
    assert not device.captures
    assert device.compile(lambda: values, SHAPE, eager=False)() is values
    assert runtime.calls["graph"] == 1


@pytest.mark.row("F-982")
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), ValueError("of a kernel's launcher")])
def test_any_error_of_a_capture_is_one(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    device, runtime = open_device()

    def step() -> Tensor:
        if runtime._capturing:
            raise error
        return torch.ones(2)

    assert device.compile(step, SHAPE, eager=False) is step
    assert str(error) in caplog.text


def test_an_error_of_the_step_itself_is_none() -> None:
    def step() -> Tensor:
        raise RuntimeError("wrong anyway")

    device, _ = open_device()
    with pytest.raises(RuntimeError, match="wrong anyway"):
        device.compile(step, SHAPE, eager=False)
    assert device.captures


class Lengths:
    """A step that sums as many numbers of each row as the longest has: the host knows how many, and changes it."""

    def __init__(self) -> None:
        self.values, self.longest = torch.rand(4, 100) + 1, 1

    def __call__(self) -> Tensor:
        return self.values[:, : self.longest].sum(1, keepdim=True)

    def fill(self, longest: int) -> Callable[[], None]:
        return lambda: setattr(self, "longest", longest)


def test_a_number_frozen_on_the_host_is_found_with_a_second_filling(caplog: pytest.LogCaptureFixture) -> None:
    device, _ = open_device()
    step = Lengths()
    replay = device.compile(step, SHAPE, eager=False, fillings=[step.fill(1)])
    assert replay is not step, "with what was captured there is nothing to see"
    assert device.compile(step, SHAPE, eager=False, fillings=[step.fill(90), step.fill(1)]) is step
    assert "replaying the step of 4 rows gives other values (off by 0.9" in caplog.text


def test_a_replay_that_does_not_write_is_found() -> None:
    """The step launched op by op would write for it, if it came first."""
    device, _ = open_device()
    cache, place, token = torch.zeros(8), [0], torch.ones(1)

    def step() -> Tensor:
        cache[place[0]].copy_(token[0])
        return cache.clone()

    def fill() -> None:
        cache.zero_()
        place[0] = 5

    assert device.compile(step, SHAPE, eager=False, fillings=[fill]) is step


def test_rows_differ_by_their_own_length() -> None:
    """A large row must not hide what is wrong with a small one."""
    device, _ = open_device()
    rows, off = torch.tensor([[1e4, 0.0], [0.01, 0.01]]), [0.0]

    def step() -> Tensor:
        return rows + off[0]

    assert device.compile(step, SHAPE, eager=False, fillings=[lambda: off.__setitem__(0, 0.001)]) is step


class Ranks:
    """The collectives of two ranks, of which the other one says ``refuses``."""

    def __init__(self, refuses: int) -> None:
        self.refuses = refuses

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return torch.cat([x, torch.tensor([self.refuses])])


@pytest.mark.parametrize("refuses", [0, 1])
def test_ranks_agree(refuses: int, caplog: pytest.LogCaptureFixture) -> None:
    """One that replays would wait for ever for one that launches op by op, whose collectives come in other numbers."""
    device, _ = open_device()
    ranks: Any = Ranks(refuses)
    device._ranks = ranks
    x = torch.ones(2)
    replay = device.compile(lambda: x + 1, SHAPE, eager=False)
    assert torch.equal(replay(), x + 1)
    assert device.captures == (not refuses)
    assert ("no graphs on a GPU: there is none on rank 1" in caplog.text) == bool(refuses)


def test_a_pool_lasts_as_long_as_its_first_graph() -> None:
    device, runtime = open_device()
    x = torch.zeros(2)
    replays = [device.compile(lambda: x + 1, SHAPE, eager=False) for _ in range(3)]
    replays.clear()
    gc.collect()
    device.compile(lambda: x + 1, SHAPE, eager=False)
    pools = [arguments[0] for name, arguments in runtime.log if name == "graph"]
    assert [pool is None for pool in pools] == [True, False, False, True]
    assert pools[1] == pools[2]
