"""Block tables that stay where they are from step to step: a step is told of what has changed, and picks its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from lsv_runtime.devices.device import Device

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class BlockTables:
    """The block tables of all slots in one KV group: int32 [slots, blocks], 0 where a slot has no block.

    ``full_width`` tables are always read whole: a media item has all its blocks, however long the request is.
    """

    def __init__(self, slots: int, blocks: int, *, full_width: bool = False) -> None:
        self.full_width = full_width
        # One slot more than there are: that of padding rows, which have no blocks.
        self._table: Int32s = np.zeros((slots + 1, blocks), np.int32)
        self._used: Int32s = np.zeros(slots, np.int32)
        self._mirror: torch.Tensor | None = None
        self._changed: dict[int, tuple[int, int]] = {}  # columns [first, last) by slot, while there is a mirror

    def clear(self, slot: int) -> None:
        self._grow(slot + 1, 0)
        used = int(self._used[slot])
        self._table[slot, :used] = 0
        self._used[slot] = 0
        if self._mirror is not None:
            self._note(slot, 0, used)

    def extend(self, slot: int, blocks: Sequence[int] | Int32s) -> None:
        first = int(self._used[slot])
        last = first + len(blocks)
        self._grow(slot + 1, last)
        self._table[slot, first:last] = blocks
        self._used[slot] = last
        if self._mirror is not None:
            self._note(slot, first, last)

    def replace(self, slot: int, column: int, block: int) -> None:
        """Put a block where another one was."""
        assert column < self._used[slot], "there is no block to replace"
        self._table[slot, column] = block
        if self._mirror is not None:
            self._note(slot, column, column + 1)

    def rows(self, slots: Int64s, width: int) -> TableRows:
        """The first ``width`` blocks of each slot."""
        if not self.full_width:
            self._grow(0, width)
        return TableRows(self, slots, self._table.shape[1] if self.full_width else width)

    def at(self, slots: Int64s, columns: Any) -> Int32s:
        """The blocks of these slots (-1: of no slot) at these columns."""
        found: Int32s = self._table[slots, columns]
        return found

    def on(self, device: Device) -> torch.Tensor:
        """The tables on a device, int32 [slots + 1, blocks]. Only what has changed since the last call is sent."""
        import torch

        from lsv_runtime.devices import staging

        if self._mirror is None or self._mirror.shape != self._table.shape:
            self._mirror = torch.zeros(self._table.shape, dtype=torch.int32, device=device.torch_device)
            self._changed = {int(slot): (0, int(self._used[slot])) for slot in np.flatnonzero(self._used)}
        if self._changed:
            places, values = self._take_changes()
            sent = staging.send(np.stack((places, values)), device.torch_device)
            self._mirror.view(-1).index_copy_(0, sent[0], sent[1].int())
        return self._mirror

    def _take_changes(self) -> tuple[Int64s, Int64s]:
        """Where in the flat table numbers have changed, and the numbers."""
        slots = np.fromiter(self._changed, np.int64)
        first, last = np.array(list(self._changed.values()), np.int64).T
        count = last - first
        self._changed = {}
        row = slots.repeat(count)
        column = np.arange(len(row)) - (np.cumsum(count) - count - first).repeat(count)
        return row * self._table.shape[1] + column, self._table[row, column].astype(np.int64)

    def _note(self, slot: int, first: int, last: int) -> None:
        before = self._changed.get(slot, (first, last))
        self._changed[slot] = min(first, before[0]), max(last, before[1])

    def _grow(self, slots: int, blocks: int) -> None:
        old_slots, old_blocks = self._table.shape[0] - 1, self._table.shape[1]
        if slots <= old_slots and blocks <= old_blocks:
            return
        more_slots = max(slots, 2 * old_slots) - old_slots if slots > old_slots else 0
        more_blocks = max(blocks, 2 * old_blocks) - old_blocks if blocks > old_blocks else 0
        self._table = np.pad(self._table, ((0, more_slots), (0, more_blocks)))
        self._used = np.pad(self._used, (0, more_slots))


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """The block tables of a step's rows in one KV group, int32 [rows, width]; numpy makes an array of it when asked."""

    tables: BlockTables
    slots: Int64s
    """[rows]: the slot of each row, -1 for padding."""
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.slots), self.width

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        found = self.tables.at(self.slots, slice(self.width))
        return found if dtype is None else found.astype(dtype)

    def at(self, rows: Int64s, columns: Int64s) -> Int32s:
        """The blocks of these rows at these columns."""
        return self.tables.at(self.slots[rows], columns)

    def padded(self, rows: int) -> TableRows:
        """With so many more rows, which have no blocks."""
        return TableRows(self.tables, np.pad(self.slots, (0, rows), constant_values=-1), self.width)


def pad_rows(table: Int32s | TableRows, rows: int) -> Int32s | TableRows:
    """A block table [rows, blocks] with so many more rows, of null pages."""
    return table.padded(rows) if isinstance(table, TableRows) else np.pad(table, ((0, rows), (0, 0)))


def blocks_at(table: Int32s | TableRows, rows: Int64s, columns: Int64s) -> Int32s:
    """The blocks of these rows at these columns."""
    return table.at(rows, columns) if isinstance(table, TableRows) else table[rows, columns]
