"""Room for recurrent states behind drafts, of which only one will stand."""

from __future__ import annotations

from collections.abc import Sequence

from lsv.kv.blocks import BlockPool
from lsv.kv.spec import Cohort
from lsv.kv.table import Table


class DraftStates:
    """Blocks of the state cohort that a row with drafts leaves a state in behind each of its tokens but the last, whose
    own goes where it always goes. When it is known which tokens stand, the block with the state behind the last of them
    takes its place in the table, and all others are free again.

    A state at a border is in the table's block from the beginning, so a checkpoint is what the table says.
    """

    def __init__(self, pool: BlockPool, cohorts: Sequence[Cohort], block_size: int) -> None:
        self._pool = pool
        self._size = block_size
        self._place, cohort = next((place, one) for place, one in enumerate(cohorts) if one.state)
        self.group, self.width = cohort.first, cohort.width
        """The first of the state groups, and how many they are."""

    def take(self, table: Table, drafts: int) -> tuple[int, ...]:
        """Blocks for the states before each of so many drafts; they must be available."""
        assert not table.draft_states, "a row with drafts has not settled"
        table.draft_states = self._pool.take(drafts, self.width)
        return tuple(table.draft_states)

    def settle(self, table: Table, computed: int, rejected: int) -> None:
        """A row with drafts has settled: ``computed`` tokens stand, and the last ``rejected`` drafts were wrong."""
        drafted, width = table.draft_states, self.width
        if rejected and computed % self._size:
            kept = len(drafted) - rejected * width
            column = (computed - 1) // self._size
            blocks, begin = table.blocks[self._place], column * width
            standing = drafted[kept : kept + width]
            drafted[kept : kept + width] = blocks[begin : begin + width]
            blocks[begin : begin + width] = standing
            table.kept_state = column, tuple(standing)
        self.drop(table)

    def drop(self, table: Table) -> None:
        """Give back the blocks that a row has left states in."""
        for block in table.draft_states[:: self.width]:
            self._pool.unref(block)
        table.draft_states = []
