"""What is behind a fake worker's cache: contents of blocks in host memory, and with a keeper that may lose them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lsv.scheduler.plan import StepPlan

LOST = "its blocks could not be loaded"

Content = tuple[int, tuple[int | None, ...]]
"""The group of a block, and what each of its positions holds."""


class Reader(Protocol):
    """A slot whose request reads what is loaded."""

    stay: int
    fault: str | None


class FakeKeeper:
    """A ``Keeper``, and what its other end has. What is ``gone`` can't be had, though it seems so."""

    def __init__(self) -> None:
        self.contents: dict[bytes, tuple[Content, ...]] = {}
        self.gone: set[bytes] = set()

    def has(self, key: bytes) -> bool:
        return key in self.contents

    def look(self, keys: Sequence[bytes]) -> Callable[[bytes], bool]:
        return self.has


class FakeCopies:
    """Carries out saves and loads over the contents [groups] of a worker's blocks."""

    def __init__(self, contents: Sequence[dict[int, list[int | None]]], keeper: FakeKeeper | None) -> None:
        self._contents, self._keeper = contents, keeper
        self._cells: dict[int, Content] = {}
        self.loaded = 0
        """Blocks that were brought back so far."""

    def carry_out(
        self, plan: StepPlan, slots: Mapping[int, Reader], own: Callable[[int, int, int], list[int | None]]
    ) -> tuple[int, ...]:
        """Which loads failed; ``own`` gives the content of a block of a group that the request of a stay may write."""
        for key in plan.revoke:
            assert self._keeper is not None, "there is no keeper"
            self._keeper.contents.pop(key, None)
        for save in plan.saves:
            contents = tuple(map(self._read, save.blocks))
            self._cells.update(zip(save.cells, contents, strict=bool(save.cells)))
            if save.keep:
                assert self._keeper is not None, "there is no keeper"
                self._keeper.contents[save.key] = contents
                self._keeper.gone.discard(save.key)
        lost: list[int] = []
        for index, load in enumerate(plan.loads):
            slot = slots[load.slot] if load.slot >= 0 else None
            contents = tuple(self._cells[cell] for cell in load.cells) if load.cells else self._fetch(load.key)
            for block, (group, content) in zip(load.blocks, contents, strict=bool(contents)):
                own(group, block, 0 if slot is None else slot.stay)[:] = content
                self.loaded += 1
            if not contents:
                lost.append(index)
                if slot is not None:
                    slot.fault = LOST
        return tuple(lost)

    def _read(self, block: int) -> Content:
        found = [(group, tuple(content[block])) for group, content in enumerate(self._contents) if block in content]
        assert len(found) == 1, f"block {block} does not hold the content of one group"
        return found[0]

    def _fetch(self, key: bytes) -> tuple[Content, ...]:
        assert self._keeper is not None, "there is no keeper"
        return () if key in self._keeper.gone else self._keeper.contents.get(key, ())
