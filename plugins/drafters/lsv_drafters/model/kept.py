"""What a draft model keeps of sequences: blocks of its cache, given to those that were drafted for last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lsv_runtime.attention import BatchLayout

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Kept:
    """The tokens of a sequence whose keys and values are in the draft's cache, and the blocks they are in."""

    __slots__ = ("blocks", "tokens")

    def __init__(self, groups: int) -> None:
        self.tokens: Int32s = np.empty(0, np.int32)
        """Those that are computed; the last ones may be drafts that turned out wrong."""
        self.blocks: list[list[int]] = [[] for _ in range(groups)]

    def computed(self, ids: Int32s) -> int:
        """How many of ``ids`` need not be computed: as far as they are what is kept, but the last one."""
        size = min(len(self.tokens), len(ids) - 1)
        differ = np.flatnonzero(self.tokens[:size] != ids[:size])
        return int(differ[0]) if len(differ) else size

    def forget(self) -> None:
        """Its blocks are somebody else's now."""
        self.tokens = np.empty(0, np.int32)


class Pool:
    """The blocks of a cache for ``groups`` groups; block 0 is the null page."""

    def __init__(self, blocks: int, block_size: int, groups: int) -> None:
        self._size, self._groups = block_size, groups
        self._free = list(range(blocks, 0, -1))
        self._holders: dict[int, Kept] = {}  # the one used longest ago comes first

    @property
    def free(self) -> int:
        return len(self._free)

    def use(self, kept: Kept) -> None:
        """It is drafted for now, and the last to give way."""
        self._holders.pop(id(kept), None)
        self._holders[id(kept)] = kept

    def grow(self, kept: Kept, tokens: int, beside: Iterable[Kept]) -> bool:
        """Blocks for so many tokens, taken from whom nothing was drafted for longest; never from those ``beside``."""
        needed = -(-tokens // self._size)
        missing = self._groups * (needed - len(kept.blocks[0]))
        while missing > len(self._free):
            busy = {id(one) for one in beside}
            victim = next((one for key, one in self._holders.items() if key not in busy), None)
            if victim is None:
                return False
            self.release(victim)
        for group in kept.blocks:
            while len(group) < needed:
                group.append(self._free.pop())
        return True

    def release(self, kept: Kept) -> None:
        """Nothing is kept any more."""
        self._holders.pop(id(kept), None)
        for group in kept.blocks:
            self._free += reversed(group)
            group.clear()
        kept.forget()

    def layout(self, rows: Sequence[Kept], count: Int64s, context: Int64s) -> BatchLayout:
        """That of a pass over ``count`` tokens of each row, the last one of which is its ``context``-th."""
        width = -(-int(context.max()) // self._size)
        tables = tuple(self.table(rows, group, width) for group in range(self._groups))
        return BatchLayout(count.astype(np.int32), context.astype(np.int32), tables)

    def table(self, rows: Iterable[Kept], group: int, width: int) -> Int32s:
        """The block table [rows, width] of a group."""
        found = [kept.blocks[group][:width] for kept in rows]
        table = np.zeros((len(found), width), np.int32)
        for row, blocks in zip(table, found, strict=True):
            row[: len(blocks)] = blocks
        return table
