"""Copies of blocks between a cache and host memory: every byte of a page, whatever pages are made of."""

from __future__ import annotations

import pytest
import torch

from lsv.kv.tiers.records import Load, Save
from lsv.scheduler.plan import Kind, StepPlan
from lsv.transports import Transport
from lsv_runtime.worker.tiers.mover import BlockMover

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


class Kept(Transport):
    """Contents in memory."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}

    def has(self, key: bytes) -> bool:
        return key in self.contents

    def put(self, key: bytes, content: memoryview) -> None:
        self.contents.setdefault(key, bytes(content))

    def get(self, key: bytes, into: memoryview) -> bool:
        into[:] = self.contents.get(key, bytes(len(into)))
        return key in self.contents

    def remove(self, key: bytes) -> None:
        self.contents.pop(key, None)


def test_a_content_is_removed_after_it_was_put_and_before_it_is_put_anew() -> None:
    kept, memory = Kept(), [part(64)]
    mover = BlockMover(BareDevice(0), kept, None)
    saves = tuple(Save(name, (block,), keep=True) for name, block in ((b"a", 1), (b"b", 2)))
    mover.carry_out(StepPlan(step=0, kind=Kind.IDLE, saves=saves), memory)
    mover.carry_out(StepPlan(step=1, kind=Kind.IDLE, revoke=(b"a", b"b", b"c")), memory)
    mover.carry_out(StepPlan(step=2, kind=Kind.IDLE, revoke=(b"a",), saves=(Save(b"a", (3,), keep=True),)), memory)
    mover.flush()
    mover.close()
    assert kept.contents == {b"a": bytes(memory[0][3].tolist())}
