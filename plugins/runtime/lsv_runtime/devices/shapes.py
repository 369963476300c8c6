"""The forms of steps: what they are padded to, and which are warmed up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from lsv.capabilities import Padding

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int32s = npt.NDArray[np.int32]


class BatchLimits(msgspec.Struct, frozen=True):
    """The largest step."""

    max_rows: int
    max_tokens: int
    max_blocks: int
    """Cache blocks that the longest request needs."""
    block_size: int = 16
    """Tokens in a block."""
    num_blocks: int = 0
    """Blocks of the whole cache."""
    contexts: bool = True
    """Whether a prompt's new tokens may have others before them: those of its earlier chunks, or of a cached prefix."""
    drafts: int = 0
    """Most drafts of a row, which are computed behind a context of any length."""
    prompts_captured: bool = False
    """Whether attention lets steps with prompts be captured, see ``lsv_runtime.attention.AttentionBackend``."""

    @property
    def max_len(self) -> int:
        """Tokens of the longest request, rounded up to blocks."""
        return self.max_blocks * self.block_size


class Shape(msgspec.Struct, frozen=True):
    """The form of a step."""

    kind: str
    """As in the plan, or a name of the policy's own."""
    rows: int
    """Requests."""
    query: int
    """Tokens of each, at most."""
    blocks: int
    """What it counts is the policy's own choice, see ``ShapePolicy.measure``."""
    tokens: int = 0
    """Tokens of all rows together, where a flat step is padded to as many; padding rows have those that are left, and
    perhaps none. 0 where each of them has one.
    """

    @property
    def size(self) -> int:
        """Tokens that the layers are given, those that fill the step up included."""
        return self.tokens or self.rows * self.query


class ShapePolicy:
    """What steps are padded to and which shapes are warmed up. The default pads nothing.

    Where ``padding`` is given, the planner keeps steps of prompts inside it.
    """

    padding: Padding | None = None

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits

    def measure(self, kind: str, query: Int32s, context: Int32s) -> Shape:
        """The shape of a step whose rows have so many new tokens and, with them, so many in all.

        The default counts the blocks of the longest row.
        """
        blocks = -(-int(context.max()) // self.limits.block_size)
        return Shape(kind, len(query), int(query.max()), blocks)

    def pad(self, shape: Shape) -> Shape:
        """The shape a step runs in: one that is warmed up, or where none is large enough, ``shape`` itself."""
        return shape

    def widen(self, shape: Shape, size: int) -> Shape:
        """The shape of just so many tokens that is warmed up and holds ``shape``; where there is none, ``shape``."""
        return shape

    def warmup(self) -> Iterator[Shape]:
        """Shapes to run before the first request; each is compiled and run before the next one is asked for.

        A shape may come twice: what ``Device.compile`` made last is kept.
        """
        return iter(())

    def prepares(self, shape: Shape) -> bool:
        """Whether steps in this shape, of a kind that is warmed up, are meant to be: one that was not is told of."""
        return True

    def describe(self, shape: Shape) -> str:
        """A shape as the platform's users know it, for the log."""
        return f"({shape.kind}, {shape.rows}, {shape.tokens or shape.query}, {shape.blocks})"

    def expected(self) -> int:
        """How many shapes ``warmup`` yields, for showing progress; 0 when that is not known."""
        return 0
