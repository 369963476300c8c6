"""Copies of blocks between a cache and host memory: every byte of a page, whatever pages are made of."""

from __future__ import annotations

import pytest
import torch

from lsv.kv.tiers.records import Load, Save
from lsv.scheduler.plan import Kind, StepPlan
from lsv.worker.tiers.mover import BlockMover

from .conftest import BareDevice


def part(width: int, *, first: int = 0) -> torch.Tensor:
    """Random pages, uint8 [6, width], which begin so many bytes behind those of an allocation."""
    return torch.randint(256, (6 * width + first,), dtype=torch.uint8)[first:].view(6, width)


@pytest.mark.parametrize(
    "memory",
    [
        [part(64), part(8)],
        [part(64), part(6), part(3)],
        [part(64, first=2)],
        [part(64)[:, :32], part(30)[:, :8]],
    ],
    ids=["words", "odd pages", "an odd place", "parts of pages"],
)
def test_pages_come_back_as_they_were(memory: list[torch.Tensor]) -> None:
    mover, before = BlockMover(BareDevice(0), None, None), [one.clone() for one in memory]
    saves = (Save(b"a", (4, 1), cells=(0, 1)), Save(b"b", (5,), cells=(2,)))
    mover.carry_out(StepPlan(step=0, kind=Kind.IDLE, saves=saves), memory)
    loads = (Load(b"b", (2,), -1, cells=(2,)), Load(b"a", (3, 0), -1, cells=(0, 1)))
    assert not mover.carry_out(StepPlan(step=1, kind=Kind.IDLE, loads=loads), memory)
    for now, then in zip(memory, before, strict=True):
        assert torch.equal(now, then[[1, 1, 5, 4, 4, 5]])
