"""From logits to tokens: one pass over the batch, in which a row's result depends on its own request alone.

Order: finite check, raw log probabilities, logits processors of stage "constraints", grammar, allowed ids, bad words,
min_tokens, bias, penalties, logits processors of stage "processors", top-k, temperature, top-p, min-p, draw. Here
requests' parameters become ``CHOICE`` and ``EDIT`` records, which the ops of ``lsv_runtime.nn.sampling`` carry out.
Rows that have logits processors are edited apart from the others, by the ops' reference, and then drawn by the same op.
Nothing can bring back what a grammar forbids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lsv.request.params import NO_TOKEN_LEFT, SamplingParams
from lsv.scheduler.plan import Logprobs
from lsv_runtime.drafts.typical import is_typical
from lsv_runtime.nn import sampling
from lsv_runtime.nn.sampling import CHOICE, Choices, Edits, Sampling
from lsv_runtime.worker.processing import Processing, process_logits
from lsv_runtime.worker.sampling.choices import join_choices, make_choice
from lsv_runtime.worker.sampling.edits import NO_EDITS, join_edits
from lsv_runtime.worker.sampling.logprobs import Described, describe
from lsv_runtime.worker.sampling.masks import NO_MASKS, RowMasks, Words, allow_fewer, forbidden_by, mask_edits
from lsv_runtime.worker.slots import Slot

NOT_FINITE = (
    "the model's output is not finite (NaN or infinity): "
    "try dtype bfloat16 or float32, or --reference-ops, which does without kernels, "
    "and check that the checkpoint is sound"
)
PROCESSOR_FAILED = "a logits processor made NaN or infinity of the logits"

_PROCESSOR_FAILED = -3
"""In the place of a token, beside those of ``lsv_runtime.nn.sampling``."""
_REASONS = {
    sampling.NOT_FINITE: NOT_FINITE,
    sampling.NO_TOKEN_LEFT: NO_TOKEN_LEFT,
    _PROCESSOR_FAILED: PROCESSOR_FAILED,
}
_FORBIDDEN = torch.finfo(torch.float32).min
"""What stands for minus infinity where an op gets logits that are to be finite: far too unlikely to be drawn."""
_PLAIN = Sampling()
_GREEDY = make_choice(SamplingParams(temperature=0.0), 0)


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
    lengths = [len(slot.tokens) for slot in slots]
    drawn = draw_rows(logits, slots, lengths, ops)
    described, tokens = describe_rows(logits, drawn, slots, lengths, ops), drawn.tolist()
    return Samples(tokens, described.read() if described else {}, why_failed(tokens, slots))


def draw_rows(
    logits: Tensor,
    slots: Sequence[Slot],
    lengths: Sequence[int],
    ops: Sampling = _PLAIN,
    masks: RowMasks = NO_MASKS,
    drafts: Sequence[int] = (),
) -> Tensor:
    """The next token of each slot, which then has ``lengths`` tokens: int64 [rows] on the logits' device.

    ``logits`` [rows, vocabulary]; rows behind those of the slots only fill a step up. ``masks`` say what rows with
    grammars may draw, ``drafts`` behind how many of the slot's drafts a row is. A negative number says that there is no
    token, and why.
    """
    choices, edits = choices_of(slots, lengths, len(logits), logits.shape[-1], masks, drafts)
    processed = [row for row, slot in enumerate(slots) if slot.processing]
    if processed:
        tokens = _choose_processed(logits, choices, edits, processed, slots, masks, ops)
    else:
        tokens = ops.choose(logits, choices, edits)
    return tokens[: len(slots)]


def accept_typical(
    logits: Tensor,
    tokens: Tensor,
    slots: Sequence[Slot],
    lengths: Sequence[int],
    behind: Sequence[int],
    terms: tuple[float, float],
    masks: RowMasks = NO_MASKS,
) -> Tensor:
    """``tokens`` as ``draw_rows`` gave them, with a row's next draft in the place of a token that was drawn, where it
    is typical by ``terms`` (``lsv_runtime.drafts.typical``). Each row is ``behind`` so many drafts of its slot, and
    ``masks`` are those that the tokens were drawn by.
    """
    rows = [
        row
        for row, (slot, drafts) in enumerate(zip(slots, behind, strict=True))
        if not slot.params.greedy and row + 1 < len(behind) and behind[row + 1] == drafts + 1
    ]
    if not rows:
        return tokens
    own, allowed = [slots[row] for row in rows], {place: masks[row] for place, row in enumerate(rows) if row in masks}
    choices, edits = choices_of(
        own, [lengths[row] for row in rows], len(rows), logits.shape[-1], allowed, [behind[row] for row in rows]
    )
    which = torch.tensor(rows, device=logits.device)
    found = sampling.likelihoods(logits[which], choices, edits)
    drafts = torch.tensor([slots[row].drafts[behind[row]] for row in rows], device=logits.device)
    accepted = is_typical(found, drafts, *terms) & (tokens[which] >= 0)
    return tokens.index_copy(0, which, torch.where(accepted, drafts, tokens[which]))


def _choose_processed(
    logits: Tensor,
    choices: Choices,
    edits: Edits,
    rows: Sequence[int],
    slots: Sequence[Slot],
    masks: RowMasks,
    ops: Sampling,
) -> Tensor:
    """``ops.choose`` where ``rows`` have logits processors: of these, it first says only whether they are finite."""
    mine = np.zeros(len(choices), np.bool_)
    mine[rows] = True
    own = mine.repeat(choices["edits"])
    apart, own_edits = choices[rows], edits[own]
    choices[rows] = np.zeros((), CHOICE)
    tokens: Tensor = ops.choose(logits, choices, edits[~own])
    which = torch.tensor(rows, device=logits.device)
    # rows that are not finite have failed already, and no processor must stumble over them
    some = logits.index_select(0, which).float().nan_to_num_(0.0, 0.0, 0.0)
    forbidden = forbidden_by(masks, rows, logits.shape[-1], logits.device) if masks else None
    found = _process(some, [slots[row].processing for row in rows], forbidden, apart, own_edits, ops)
    tokens[which] = torch.where(tokens[which] < 0, tokens[which], found)
    return tokens


def _process(
    logits: Tensor,
    requests: Sequence[Sequence[Processing]],
    forbidden: Tensor | None,
    choices: Choices,
    edits: Edits,
    ops: Sampling,
) -> Tensor:
    """The tokens int64 [rows] of finite ``logits`` float32 [rows, vocabulary] that all have processors; used up.

    ``forbidden`` bool [rows, vocabulary] is what grammars rule out, whatever a processor writes.
    """
    process_logits(logits, requests, "constraints")
    if len(edits) or choices["only"].any():
        sampling.edit_logits(logits, choices, edits)
    process_logits(logits, requests, "processors")
    if forbidden is not None:
        logits.masked_fill_(forbidden, float("-inf"))
    choices["only"] = choices["edits"] = 0
    tokens: Tensor = ops.choose(logits.clamp_(min=_FORBIDDEN), choices, NO_EDITS)
    failed = tokens < 0
    chosen = logits.gather(-1, tokens.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return tokens.masked_fill_(chosen == _FORBIDDEN, sampling.NO_TOKEN_LEFT).masked_fill_(failed, _PROCESSOR_FAILED)


def why_failed(tokens: Sequence[int], slots: Sequence[Slot]) -> dict[int, str]:
    """By row, what is wrong where a token is negative."""
    return {row: _why(token, slots[row]) for row, token in enumerate(tokens) if token < 0}


def _why(token: int, slot: Slot) -> str:
    faults = [one.fault for one in slot.processing if one.fault is not None]
    return (
        f"logits processors failed: {'; '.join(faults)}" if token == _PROCESSOR_FAILED and faults else _REASONS[token]
    )


def describe_rows(
    logits: Tensor,
    tokens: Tensor,
    slots: Sequence[Slot],
    lengths: Sequence[int],
    ops: Sampling = _PLAIN,
    masks: RowMasks = NO_MASKS,
    drafts: Sequence[int] = (),
) -> Described | None:
    """Log probabilities of the rows whose slots ask for them, on their way; ``tokens`` as ``draw_rows`` gives them for
    the other arguments.
    """
    asking = [row for row, slot in enumerate(slots) if slot.params.logprobs is not None]
    if not asking:
        return None
    wanted = [slots[row].params.logprobs or 0 for row in asking]
    if not ops.processed:
        return describe(logits, tokens, wanted, asking, ops.describe)
    choices, edits = choices_of(slots, lengths, len(logits), logits.shape[-1], masks, drafts)
    # kernels may want the model's dtype, so that the reference describes these
    shown = sampling.processed_logits(logits, choices, edits).clamp_(min=_FORBIDDEN)
    return describe(shown, tokens, wanted, asking)


def choices_of(
    slots: Sequence[Slot],
    lengths: Sequence[int],
    rows: int,
    vocabulary: int,
    masks: RowMasks = NO_MASKS,
    drafts: Sequence[int] = (),
) -> tuple[Choices, Edits]:
    """What the slots' requests ask for, row by row, of logits [rows, vocabulary]; rows without a slot are greedy.

    The token of a row is drawn for the place behind ``lengths`` others, ``drafts`` of which are the slot's drafts.
    """
    choices = join_choices([*(slot.choice for slot in slots), *(_GREEDY,) * (rows - len(slots))])
    choices["position"][: len(slots)] = lengths
    edits: list[Edits] = []
    for row, slot in enumerate(slots):
        if slot.constraints is not None or row in masks:
            mine, choices["only"][row] = _edits_of(slot, masks.get(row), vocabulary, drafts[row] if drafts else 0)
            choices["edits"][row] = sum(map(len, mine))
            edits += mine
    return choices, join_edits(edits)


def _edits_of(slot: Slot, mask: Words | None, vocabulary: int, drafts: int) -> tuple[list[Edits], bool]:
    """The edits of a row behind some of its drafts, and whether all tokens are forbidden that none of them allows."""
    own = slot.edits(drafts)
    only = slot.constraints is not None and slot.constraints.only
    if mask is None:
        return own, only
    if only:
        return [allow_fewer(part, mask, vocabulary) for part in own], True
    masked, only = mask_edits(mask, vocabulary)
    return [masked, *own], only
