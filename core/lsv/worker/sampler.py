"""From logits to tokens: one pass over the batch, in which a row's result depends on its own request alone.

Order: finite check, raw log probabilities, allowed ids, bad words, min_tokens, bias, penalties, temperature,
top-k, top-p, min-p, draw. Rows that ask for nothing skip a stage; an all-greedy batch is one argmax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lsv.nn import sample
from lsv.request import SamplingParams
from lsv.scheduler.plan import Logprobs
from lsv.worker.constraints import constrain
from lsv.worker.draws import uniform
from lsv.worker.logprobs import describe
from lsv.worker.slots import Slot

NOT_FINITE = (
    "the model's output is not finite (NaN or infinity): "
    "try dtype bfloat16 or float32, and check that the checkpoint is sound"
)
NO_TOKEN_LEFT = (
    "no token may be drawn: allowed_token_ids, bad_words and min_tokens together forbid every one; relax one of them"
)

_ROWS_AT_ONCE = 32
"""Rows drawn together; bounds the scratch memory, which is tens of bytes per row and vocabulary entry."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What was drawn, by row of the logits: tokens, log probabilities if asked for, and why rows failed."""

    tokens: list[int]
    logprobs: Mapping[int, Logprobs]
    failed: Mapping[int, str]


def sample_rows(logits: Tensor, slots: Sequence[Slot]) -> Samples:
    """Draw the next token of each slot. ``logits`` [rows, vocabulary], any float dtype, is used up."""
    logits = logits.float()
    failed = dict.fromkeys(_blank(logits, sample.finite(logits)), NOT_FINITE)
    asking = [row for row, slot in enumerate(slots) if slot.params.logprobs is not None]
    raw = logits[asking].log_softmax(dim=-1) if asking else None
    if any(map(_is_constrained, slots)):
        constrain(logits, slots)
        failed |= dict.fromkeys(_blank(logits, logits.amax(dim=-1) > float("-inf")), NO_TOKEN_LEFT)
    tokens = _choose(logits, slots)
    logprobs: dict[int, Logprobs] = {}
    if raw is not None:
        found = describe(raw, tokens[asking], [slots[row].params.logprobs or 0 for row in asking])
        logprobs = {row: one for row, one in zip(asking, found, strict=True) if row not in failed}
    return Samples(tokens.tolist(), logprobs, failed)


def _blank(logits: Tensor, sound: Tensor) -> list[int]:
    """The rows that are not sound; they are zeroed so that the other stages meet numbers only."""
    rows: list[int] = (~sound).nonzero().flatten().tolist()
    if rows:
        logits[rows] = 0.0
    return rows


def _is_constrained(slot: Slot) -> bool:
    params = slot.params
    return bool(
        slot.counts is not None
        or params.allowed_token_ids is not None
        or slot.begin.bad_words
        or params.min_tokens
        or params.logit_bias
    )


def _choose(logits: Tensor, slots: Sequence[Slot]) -> Tensor:
    """int64 [rows]: the best token of greedy rows, a drawn one of the others."""
    drawing = [row for row, slot in enumerate(slots) if not slot.params.greedy]
    if not drawing:
        return sample.greedy(logits)
    tokens = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
    if len(drawing) < len(slots):
        tokens = sample.greedy(logits)
    for first in range(0, len(drawing), _ROWS_AT_ONCE):
        rows = drawing[first : first + _ROWS_AT_ONCE]
        tokens[rows] = _draw(logits[rows], [slots[row] for row in rows])
    return tokens


def _draw(logits: Tensor, slots: Sequence[Slot]) -> Tensor:
    """Temperature, the filters and the draw; int64 [rows]."""
    params = [slot.params for slot in slots]
    vocabulary = logits.shape[-1]
    logits = sample.temper(logits, logits.new_tensor([one.temperature for one in params]))
    logits = _filter(logits, sample.top_k, [_top_k(one, vocabulary) for one in params])
    weights = sample.weigh(logits)
    weights = _filter(weights, sample.top_p, [_fraction(one.top_p, off=1.0) for one in params])
    weights = _filter(weights, sample.min_p, [_fraction(one.min_p, off=0.0) for one in params])
    draws = uniform([slot.begin.seed for slot in slots], [len(slot.tokens) for slot in slots])
    return sample.draw(weights, torch.from_numpy(draws).to(weights.device))


def _top_k(params: SamplingParams, vocabulary: int) -> int | None:
    return params.top_k if 0 < params.top_k < vocabulary else None


def _fraction(share: float, *, off: float) -> int | None:
    """A share of 1 as a 32-bit fraction; None where it filters nothing."""
    return None if share == off else round(share * 2.0**32)


def _filter(x: Tensor, op: Callable[[Tensor, Tensor], Tensor], values: Sequence[int | None]) -> Tensor:
    """Apply ``op`` to the rows that have a value."""
    rows = [row for row, value in enumerate(values) if value is not None]
    if not rows:
        return x
    argument = torch.tensor([values[row] for row in rows], dtype=torch.int64, device=x.device)
    if len(rows) == len(values):
        return op(x, argument)
    x[rows] = op(x[rows], argument)
    return x
