"""Per-request changes to logits: gathered over a batch as (row, token) pairs, applied with ``nn.sample``.

Token ids outside the vocabulary are left out: they can't be drawn anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.nn import sample
from lsv.worker.slots import Slot

Floats = npt.NDArray[np.float32]
_Tokens = npt.NDArray[np.int64]


def constrain(logits: Tensor, slots: Sequence[Slot]) -> Tensor:
    """Allowed ids, bad words, min_tokens, bias and penalties, in this order and in place.

    ``logits`` float32 [rows, vocabulary], ``slots`` one a row.
    """
    for step in (_allow, _forbid, _bias, _penalize):
        step(logits, slots)
    return logits


def _allow(logits: Tensor, slots: Sequence[Slot]) -> None:
    rows = [row for row, slot in enumerate(slots) if slot.params.allowed_token_ids is not None]
    if rows:
        row_of, tokens = _pairs(logits, slots, lambda slot: slot.params.allowed_token_ids or ())
        sample.allow_only(logits, _put(np.array(rows), logits), row_of, tokens)


def _forbid(logits: Tensor, slots: Sequence[Slot]) -> None:
    for tokens_of in (banned_endings, withheld_stops):
        rows, tokens = _pairs(logits, slots, tokens_of)
        if len(rows):
            sample.forbid(logits, rows, tokens)


def _bias(logits: Tensor, slots: Sequence[Slot]) -> None:
    if not any(slot.params.logit_bias for slot in slots):
        return
    rows, tokens = _pairs(logits, slots, lambda slot: slot.params.logit_bias)
    vocabulary = logits.shape[-1]
    bias = [b for slot in slots for token, b in slot.params.logit_bias.items() if 0 <= token < vocabulary]
    if bias:
        sample.add_bias(logits, rows, tokens, _put(np.array(bias, np.float32), logits))


def _penalize(logits: Tensor, slots: Sequence[Slot]) -> None:
    penalised = [(row, slot) for row, slot in enumerate(slots) if slot.counts is not None]
    if not penalised:
        return
    columns = [_penalties(row, slot) for row, slot in penalised]
    pairs = (_put(np.concatenate(column), logits) for column in zip(*columns, strict=True))
    sample.penalize(logits, *pairs)


def _penalties(row: int, slot: Slot) -> tuple[_Tokens, _Tokens, Floats, Floats]:
    """Row, token, repetition and additive penalty of each distinct token of a request."""
    assert slot.counts is not None
    params, counts = slot.params, slot.counts.counts
    additive = params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    size = len(counts)
    return (
        np.full(size, row, np.int64),
        slot.counts.tokens.astype(np.int64),
        np.full(size, params.repetition_penalty, np.float32),
        additive.astype(np.float32),
    )


def banned_endings(slot: Slot) -> list[int]:
    """Last tokens of bad words whose other tokens the output already ends with."""
    words = slot.begin.bad_words
    if not words:
        return []
    output = slot.output
    return [word[-1] for word in words if word and _ends_with(output, word[:-1])]


def _ends_with(output: npt.NDArray[np.int32], tokens: tuple[int, ...]) -> bool:
    if len(tokens) > len(output):
        return False
    return not tokens or tuple(output[-len(tokens) :].tolist()) == tokens


def withheld_stops(slot: Slot) -> tuple[int, ...]:
    """The ids that would end the answer before it has ``min_tokens``."""
    return slot.begin.stop_ids if len(slot.output) < slot.params.min_tokens else ()


def _pairs(logits: Tensor, slots: Sequence[Slot], tokens_of: Callable[[Slot], Iterable[int]]) -> tuple[Tensor, Tensor]:
    """What ``tokens_of`` names for each slot, as rows and tokens: int64 [pairs] on the logits' device."""
    vocabulary = logits.shape[-1]
    named = ((row, token) for row, slot in enumerate(slots) for token in tokens_of(slot))
    pairs = [pair for pair in named if 0 <= pair[1] < vocabulary]
    both = _put(np.array(pairs, np.int64).reshape(-1, 2).T.copy(), logits)
    return both[0], both[1]


def _put(values: npt.NDArray[np.generic], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device, non_blocking=True)
