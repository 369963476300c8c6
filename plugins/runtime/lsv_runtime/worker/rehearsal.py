"""Rehearsed steps: made-up requests with long contexts, for comparing two ways to compute a step while nobody waits.

A step on the null page alone, as it is warmed up on, has contexts of one token: a number that was taken from it for
good, such as the longest context, would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import BatchLayout, Int32s
from lsv_runtime.devices.shapes import BatchLimits, Shape
from lsv_runtime.worker.inputs import Batch, dummy_batch, pad_batch

Int64s = npt.NDArray[np.int64]

_MOST_TOKENS = 2048
"""Contexts are no longer; kernels work on a few hundred tokens at once."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Requests that share a prompt, which must be computed first, and go on with different tokens after as much of it.

    Blocks are taken from the beginning of a cache that holds nothing yet: the prompt's, then one for every request.
    """

    groups: Sequence[KVGroup]
    limits: BatchLimits
    vocab_size: int
    axes: int = 1

    @property
    def prompt_blocks(self) -> int:
        """Whole blocks of the shared prompt; 0 where there is no room for one."""
        size, limits = self.limits.block_size, self.limits
        return max(0, min(_MOST_TOKENS // size, limits.max_tokens // size, limits.max_blocks - 1, self._blocks // 2))

    def prompt(self) -> Batch:
        """The shared prompt, of at least one block."""
        shape = Shape("prefill", 1, self.prompt_blocks * self.limits.block_size, self.prompt_blocks)
        dummy = dummy_batch(shape, self.groups, self.limits.block_size, padded=False, axes=self.axes)
        tables = tuple(self._table(group, 1) for group in self.groups)
        return replace(dummy, ids=self._ids(shape.query), layout=replace(dummy.layout, tables=tables))

    def step(self, dummy: Batch, shape: Shape) -> Batch:
        """A step in ``shape``; ``dummy`` is one that attends to as much of media.

        Each row has one token, or where the shape says how many all have together, up to a block of them. Rows for
        which there are no blocks compute their tokens on the null page.
        """
        shared = self.prompt_blocks
        most = shape.rows - 1 if shape.tokens else shape.rows  # the last one has the tokens that are left
        rows = np.arange(max(0, min(most, self._blocks - shared)))
        parts = shared - rows % (shared + 1)  # of the prompt, in blocks; the longest comes first
        tables = []
        for group in self.groups:
            table = np.zeros((len(rows), shape.blocks), np.int32)
            table[:, :shared] = self._table(group, len(rows))
            table[rows, parts] = self._first(group) + shared + rows
            tables.append(table)
        start, query = parts * self.limits.block_size, self._lengths(len(rows), shape.tokens)
        last = query.cumsum(dtype=np.int64) - 1
        layout = BatchLayout(query, (start + query).astype(np.int32), tuple(tables))
        positions = np.arange(query.sum()) + (start - (last + 1 - query)).repeat(query)
        # the last block may not be needed whole by the longest request, and there are no positions behind it
        positions = positions.clip(max=(self.limits.max_blocks - 1) * self.limits.block_size)
        batch = pad_batch(
            Batch(self._ids(len(positions)), np.tile(positions, (self.axes, 1)), layout, last), shape, padded=False
        )
        return replace(batch, cross=dummy.cross and replace(dummy.cross, query=batch.layout.query))

    def _lengths(self, rows: int, tokens: int) -> Int32s:
        """Tokens of each row, one unless there are to be ``tokens`` together: then the first have a block of them."""
        query = np.ones(rows, np.int32)
        whole, left = divmod(max(0, tokens - rows), max(1, self.limits.block_size - 1))
        query[:whole] = self.limits.block_size
        query[whole : whole + 1] += left
        return query

    def _ids(self, count: int) -> Int64s:
        """The same on all ranks."""
        return np.random.default_rng(count).integers(self.vocab_size, size=count)

    def _table(self, group: KVGroup, rows: int) -> Int32s:
        """The prompt's blocks [rows, prompt_blocks]."""
        return np.tile(self._first(group) + np.arange(self.prompt_blocks, dtype=np.int32), (rows, 1))

    def _first(self, group: KVGroup) -> int:
        return 1 + self._blocks * group.index

    @property
    def _blocks(self) -> int:
        """Blocks of the cache for each group."""
        return self.limits.num_blocks // max(1, len(self.groups))
