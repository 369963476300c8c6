"""All padded shapes of a configuration, and the one that a step runs in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from lsv_hpu.buckets.choice import Sizes, in_whole_blocks, most_blocks
from lsv_runtime.devices.shapes import BatchLimits, Shape

PROMPT, DECODE = "prefill", "decode"


class Buckets:
    """The shapes that steps can come to need: combinations that no step within ``limits`` reaches are left out.

    ``prompts`` have as ``blocks`` those of the context before the new tokens of the row that has most, ``decodes``
    those of all rows together. Both are ascending.
    """

    def __init__(self, sizes: Sizes, limits: BatchLimits) -> None:
        self.sizes, self.limits = sizes, limits
        self._contexts = {
            (rows, query): contexts
            for rows in sizes.prompt_bs
            for before, query in _steps(sizes.prompt_seq)
            if (contexts := self._contexts_beside(rows, before, query))
        }
        self._blocks = {rows: self._blocks_of(before, rows) for before, rows in _steps(sizes.decode_bs)}
        self.prompts = tuple(
            Shape(PROMPT, rows, query, context)
            for (rows, query), contexts in self._contexts.items()
            for context in contexts
        )
        self.decodes = tuple(Shape(DECODE, rows, 1, count) for rows, counts in self._blocks.items() for count in counts)

    def fit(self, shape: Shape) -> Shape | None:
        """The smallest shape that holds ``shape`` in every dimension: fewest rows, then tokens, then blocks."""
        if shape.kind == PROMPT:
            return self._fit_prompt(shape)
        for rows in _from(self.sizes.decode_bs, shape.rows):
            for blocks in _from(self._blocks[rows], shape.blocks)[:1]:
                return Shape(DECODE, rows, 1, blocks)
        return None

    def fit_size(self, shape: Shape, size: int) -> Shape | None:
        """The smallest shape of just ``size`` tokens that holds ``shape`` in every dimension."""
        shapes = self.prompts if shape.kind == PROMPT else self.decodes
        holding = (one for one in shapes if one.size == size and _holds(one, shape))
        return min(holding, key=lambda one: (one.rows, one.query, one.blocks), default=None)

    def _fit_prompt(self, shape: Shape) -> Shape | None:
        for rows in _from(self.sizes.prompt_bs, shape.rows):
            for query in _from(self.sizes.prompt_seq, shape.query):
                for context in _from(self._contexts.get((rows, query), ()), shape.blocks)[:1]:
                    return Shape(PROMPT, rows, query, context)
        return None

    def _contexts_beside(self, rows: int, before: int, query: int) -> tuple[int, ...]:
        """The context sizes of ``rows`` with more than ``before`` and up to ``query`` new tokens.

        Of several rows, one may have the new tokens and another the context.
        """
        limits = self.limits
        if rows * query > limits.max_tokens or before >= limits.max_len:
            return ()
        new = before + 1 if rows == 1 else 1
        grain = limits.block_size if in_whole_blocks(limits) else 1
        return tuple(
            context
            for fewer, context in _steps(self.sizes.prompt_ctx, first=-1)
            if new + (fewer * limits.block_size + grain if fewer >= 0 else 0) <= limits.max_len
        )

    def _blocks_of(self, fewer_rows: int, rows: int) -> tuple[int, ...]:
        """The block counts of more than ``fewer_rows`` and up to ``rows`` rows, each of which has a block at least.

        What is listed beyond the cache is cut down to it: a step of that size would not fit into memory either.
        """
        bound = most_blocks(self.limits)
        most = min(rows * self.limits.max_blocks, bound)
        counts = self._counts(rows)
        return tuple(int(min(count, bound)) for fewer, count in _steps(counts) if fewer < most and count > fewer_rows)

    def _counts(self, rows: int) -> Sequence[int]:
        """The block counts that the sizes give a step of ``rows``."""
        size = self.limits.block_size
        return [rows * -(-length // size) for length in self.sizes.decode_seq] or self.sizes.decode_block

    def label(self, shape: Shape) -> tuple[int, ...]:
        """A shape as the log writes it: (batch, length), for prompts with the blocks of a context after them.

        The length of decoding rows is in cache blocks of all, or in tokens of each if ``decode_seq`` sizes them.
        """
        if shape.kind != PROMPT and shape.query == 1:
            return (shape.rows, self._length(shape))
        return (shape.rows, shape.query, shape.blocks) if shape.blocks else (shape.rows, shape.query)

    def describe(self, shape: Shape) -> str:
        """A shape in the words of the log of warm-up."""
        if shape.kind == DECODE:
            word = "seq_len" if self.sizes.decode_seq else "num_blocks"
            return f"batch_size:{shape.rows} {word}:{self._length(shape)}"
        context = f" num_blocks:{shape.blocks}" if shape.blocks else ""
        return f"batch_size:{shape.rows} seq_len:{shape.query}{context}"

    def _length(self, shape: Shape) -> int:
        return shape.blocks * self.limits.block_size // shape.rows if self.sizes.decode_seq else shape.blocks


def _steps(sizes: Sequence[int], first: int = 0) -> Iterator[tuple[int, int]]:
    """Each size behind the one before it."""
    return pairwise((first, *sizes))


def _from(sizes: Sequence[int], least: int) -> Sequence[int]:
    return sizes[bisect_left(sizes, least) :]


def _holds(one: Shape, other: Shape) -> bool:
    return one.rows >= other.rows and one.query >= other.query and one.blocks >= other.blocks
