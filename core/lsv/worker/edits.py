"""What requests' parameters change about their logits, as ``EDIT`` records: made, and joined for a batch.

Token ids outside the vocabulary are left out: they can't be drawn anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lsv.nn.sampling import EDIT, Edits, Kind
from lsv.request.params import SamplingParams
from lsv.worker.slots import Slot, TokenCounts

NO_EDITS: Edits = np.empty(0, EDIT)

Tokens = Sequence[int] | npt.NDArray[np.signedinteger]


def edits_of(slot: Slot, vocabulary: int) -> Edits:
    """A request's allowed ids, bad words, min_tokens, bias and penalties, in the order in which they apply."""
    params = slot.params
    parts: list[Edits] = []
    if params.allowed_token_ids is not None:
        parts.append(make_edits(Kind.ALLOW, within(params.allowed_token_ids, vocabulary)))
    if forbidden := (*banned_endings(slot), *withheld_stops(slot)):
        parts.append(make_edits(Kind.FORBID, within(forbidden, vocabulary)))
    if params.logit_bias:
        bias = {token: value for token, value in params.logit_bias.items() if 0 <= token < vocabulary}
        parts.append(make_edits(Kind.ADD, list(bias), list(bias.values())))
    if slot.counts is not None:
        parts.append(_penalties(params, slot.counts, vocabulary))
    return parts[0] if len(parts) == 1 else join_edits(parts)


def make_edits(kind: Kind, tokens: Tokens, first: npt.ArrayLike = 0.0, second: npt.ArrayLike = 0.0) -> Edits:
    """One edit of a kind for each of the tokens; its arguments ``first`` and ``second`` are one for all, or a list."""
    edits = np.empty(len(tokens), EDIT)
    edits["token"], edits["kind"], edits["first"], edits["second"] = tokens, kind, first, second
    return edits


def join_edits(parts: Iterable[Edits]) -> Edits:
    """All parts in one array; joined as bytes, because numpy takes microseconds to compare the records' fields."""
    joined = b"".join(part.tobytes() for part in parts if len(part))
    return np.frombuffer(joined, EDIT) if joined else NO_EDITS


def within(tokens: Iterable[int], vocabulary: int) -> list[int]:
    """The distinct tokens that exist in a vocabulary of that size."""
    return [token for token in dict.fromkeys(tokens) if 0 <= token < vocabulary]


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


def _penalties(params: SamplingParams, counted: TokenCounts, vocabulary: int) -> Edits:
    """Repetition and additive penalty of each distinct token of a request."""
    tokens, counts = counted.tokens, counted.counts
    additive: npt.ArrayLike = 0.0
    if params.presence_penalty or params.frequency_penalty:
        additive = params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    edits = make_edits(Kind.PENALIZE, tokens, params.repetition_penalty, additive)
    return edits if tokens.max(initial=0) < vocabulary else edits[tokens < vocabulary]
