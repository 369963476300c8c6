"""What a kernel may be compiled for when it is launched the first time: steps of all sizes, tokens chosen in all ways.

Where compiling takes seconds, the first request that needs a variant would wait for it; so each is run at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import BatchLayout, Int32s
from lsv_runtime.devices.shapes import BatchLimits
from lsv_runtime.nn.sampling import CHOICE, WHOLE, Kind, Sampling
from lsv_runtime.worker.inputs import Batch
from lsv_runtime.worker.sampling.edits import NO_EDITS, join_edits, make_edits

_DESCRIBED = (0, 1, 5, 16)
"""How many of the likeliest tokens beside the chosen one: numbers that compilers take for a kind each."""
_SHORT = 64
"""Tokens of a row after a long context: more of them are computed in the same way, and take longer."""


def sample_in_all_ways(logits: Tensor, ops: Sampling) -> None:
    """Choose a token of every row, greedily and by drawing, with edits of every kind and without, and describe it.

    ``logits`` say of what form; their numbers are not looked at, since of a null page they may be none.
    """
    rows, logits = len(logits), torch.zeros_like(logits)
    greedy, drawn = np.zeros(rows, CHOICE), np.zeros(rows, CHOICE)
    drawn["rate"], drawn["top_k"], drawn["top_p"], drawn["min_p"] = 1.0, 2, WHOLE // 2, WHOLE // 8
    edits = join_edits([make_edits(kind, [0], 1.0) for kind in Kind] * rows)
    for choices in (greedy, drawn):
        ops.choose(logits, choices, NO_EDITS)
        edited = choices.copy()
        edited["edits"] = len(Kind)
        ops.choose(logits, edited, edits)
    which = torch.arange(rows, device=logits.device)
    for most in _DESCRIBED:
        ops.describe(logits, which, torch.zeros_like(which), most)


def steps_of_all_sizes(groups: Sequence[KVGroup], limits: BatchLimits, axes: int = 1) -> Iterator[Batch]:
    """Flat steps on the null page, of 1, 2, 4, 8 … tokens up to as many as a step may have.

    They are prompts, prompts that go on after a long context beside a row that is decoded, and as many rows of one
    token as there may be.
    """
    longest = limits.max_len
    for size in takewhile(lambda size: size <= limits.max_tokens, (1 << power for power in range(32))):
        prompts = [longest] * (size // longest) + [size % longest] * (size % longest > 0)
        if size <= limits.max_rows:
            for context in (1, longest):
                yield _lay_out([1] * size, [context] * size, groups, limits, axes)
        if size > 1 and len(prompts) <= limits.max_rows:
            yield _lay_out(prompts, prompts, groups, limits, axes)
        if 1 < size <= min(_SHORT, longest) and limits.max_rows > 1:
            yield _lay_out([1, size], [longest, longest], groups, limits, axes)


def _lay_out(
    query: Sequence[int], context: Sequence[int], groups: Sequence[KVGroup], limits: BatchLimits, axes: int
) -> Batch:
    """Rows of token 0 that have so many new tokens and, with them, so many in all."""
    rows, lengths = len(query), np.array(query, np.int32)
    tables: tuple[Int32s, ...] = tuple(np.zeros((rows, limits.max_blocks), np.int32) for _ in groups)
    layout = BatchLayout(lengths, np.array(context, np.int32), tables)
    tokens = int(lengths.sum())
    return Batch(np.zeros(tokens, np.int64), np.zeros((axes, tokens), np.int64), layout, lengths.cumsum() - 1)
