"""From logits to tokens: one pass over the batch, in which a row's result depends on its own request alone.

Order: finite check, raw log probabilities, allowed ids, bad words, min_tokens, bias, penalties, top-k,
temperature, top-p, min-p, draw. Here requests become numbers; what is done with them are the ops of
``lsv.nn.sampling``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lsv.nn import sample, sampling
from lsv.nn.sampling import CHOICE, WHOLE, Choices, Edits, Sampling
from lsv.request import SamplingParams
from lsv.scheduler.plan import Logprobs
from lsv.worker.constraints import NO_EDITS, edits_of, is_constrained, join_edits
from lsv.worker.logprobs import describe
from lsv.worker.slots import Slot

NOT_FINITE = (
    "the model's output is not finite (NaN or infinity): "
    "try dtype bfloat16 or float32, and check that the checkpoint is sound"
)
NO_TOKEN_LEFT = (
    "no token may be drawn: allowed_token_ids, bad_words and min_tokens together forbid every one; relax one of them"
)

_REASONS = {sampling.NOT_FINITE: NOT_FINITE, sampling.NO_TOKEN_LEFT: NO_TOKEN_LEFT}
_PLAIN = Sampling()
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Samples:
    """What was drawn, by row of the logits: tokens, log probabilities if asked for, and why rows failed.

    A row that failed has a negative number in the place of its token.
    """

    tokens: list[int]
    logprobs: Mapping[int, Logprobs]
    failed: Mapping[int, str]


def sample_rows(logits: Tensor, slots: Sequence[Slot], ops: Sampling = _PLAIN) -> Samples:
    """Draw the next token of each slot. ``logits`` [rows, vocabulary], any float dtype."""
    tokens: list[int] = ops.choose(logits, *choices_of(slots, logits.shape[-1])).tolist()
    failed = {row: _REASONS[token] for row, token in enumerate(tokens) if token < 0}
    asking = [row for row, slot in enumerate(slots) if slot.params.logprobs is not None and row not in failed]
    logprobs: dict[int, Logprobs] = {}
    if asking:
        chosen = torch.tensor([tokens[row] for row in asking])
        wanted = [slots[row].params.logprobs or 0 for row in asking]
        logprobs = dict(zip(asking, describe(logits, chosen, wanted, asking, ops.describe), strict=True))
    return Samples(tokens, logprobs, failed)


def choices_of(slots: Sequence[Slot], vocabulary: int) -> tuple[Choices, Edits]:
    """What the slots' requests ask for, row by row."""
    edits = [edits_of(slot, vocabulary) if is_constrained(slot) else NO_EDITS for slot in slots]
    choices = np.array([_choice(slot, len(some)) for slot, some in zip(slots, edits, strict=True)], CHOICE)
    return choices, join_edits(edits)


def _choice(slot: Slot, edits: int) -> tuple[float, ...]:
    """A row's ``CHOICE``."""
    params = slot.params
    only = params.allowed_token_ids is not None
    if params.greedy:
        return 0.0, only, edits, 0, WHOLE, 0, 0, 0
    draw = slot.begin.seed & _SEED_MASK, len(slot.tokens)
    return sample.rate(params.temperature), only, edits, *_filters(params), *draw


def _filters(params: SamplingParams) -> tuple[int, int, int]:
    """Top-k, and top-p and min-p as 32-bit fractions."""
    return max(params.top_k, 0), round(params.top_p * WHOLE), round(params.min_p * WHOLE)
