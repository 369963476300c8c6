"""States on their way from stage to stage: whoever has computed goes on, and what is sent is what was computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv.config import Topology
from lsv_cpu.platform import CpuPlatform
from lsv_runtime.devices.collectives import BackendCommunicator, gloo
from lsv_runtime.devices.communicator import Group
from lsv_runtime.pipeline.link import Links, neighbours
from lsv_runtime.pipeline.meeting import Meeting


class Post:
    """A communicator that writes down what is sent and waited for."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def start_broadcast(self, x: Tensor) -> Callable[[], object]:
        number = int(x[0, 0])
        self.done.append(f"send {number}")
        return lambda: self.done.append(f"wait {number}")


def test_a_stage_waits_only_for_the_states_of_the_step_before_the_last() -> None:
    post: Any = Post()
    links = Links(None, post)
    for step in range(4):
        links.send(torch.full((3, 2), step), 2)
    assert post.done == ["send 0", "send 1", "wait 0", "send 2", "wait 1", "send 3"]


def pair(folder: Path) -> list[BackendCommunicator]:
    device = torch.device("cpu")
    groups = [Group("pp", (0, 1), rank, str(folder / "meeting")) for rank in range(2)]
    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(lambda group: BackendCommunicator(group, gloo, device), groups))


def test_states_of_two_steps_wait_for_a_stage_that_computes(tmp_path: Path) -> None:
    """The first stage has sent both, and changed them since, before the second one asks for any."""
    first, second = pair(tmp_path)
    try:
        links, states = Links(None, first), torch.randn(5, 4)
        sent = [states.clone()]
        links.send(states, 5)
        sent.append(states.mul_(2)[:3].clone())
        links.send(states, 3)
        states.zero_()
        behind, found = Links(second, None), torch.zeros(5, 4)
        for wanted in sent:
            behind.receive(found, len(wanted))
            assert torch.equal(found[: len(wanted)], wanted)
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize(("axis", "sleeps"), [("pp", True), ("tp", False)])
def test_stages_on_processors_sleep_while_they_wait(axis: str, sleeps: bool, tmp_path: Path) -> None:
    from lsv_cpu import native

    device = CpuPlatform().open(0, {"cpu.threads": 1})
    try:
        before = neighbours(1, Topology(pipeline=2), Meeting(str(tmp_path / "meeting")))[0]
        assert before is not None
        groups = [Group(axis, (0, 1), rank, before.address) for rank in range(2)]
        with ThreadPoolExecutor(2) as ranks:
            made = list(ranks.map(device.communicator, groups))
        shared = native.library() is not None and not sleeps
        assert [isinstance(one, BackendCommunicator) for one in made] == [not shared] * 2
        for one in made:
            assert one is not None
            one.close()
    finally:
        device.close()
