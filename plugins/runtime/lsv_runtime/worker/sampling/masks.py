"""What grammars let rows sample: a bit a token, as the engine sends them, to what forbids all other tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.scheduler.plan import Masks
from lsv_runtime.devices.staging import send
from lsv_runtime.nn.sampling import Edits, Kind
from lsv_runtime.worker.sampling.edits import make_edits

Words = npt.NDArray[np.uint32]
"""The mask of one row: 32 tokens a word, the lowest bits first."""

RowMasks = Mapping[int, Words]
"""By row of the logits."""

NO_MASKS: RowMasks = {}


def read_masks(masks: Masks, sampled: Sequence[int]) -> RowMasks:
    """The masks of a step, by place among the rows of its plan that sample, each as often as it does."""
    words = np.frombuffer(masks.words, np.uint32).reshape(len(masks.rows), -1)
    first: dict[int, int] = {}
    for place, row in enumerate(masks.rows):
        first.setdefault(row, place)
    found = {}
    for place, row in enumerate(sampled):
        if row in first:
            found[place] = words[first[row]]
            first[row] += 1
    return found


def mask_edits(mask: Words, vocabulary: int) -> tuple[Edits, bool]:
    """A mask as edits of its row, and whether that takes forbidding all that no edit allows.

    Where most tokens may come, the few others are forbidden instead. The edits are shared, and not to be changed.
    """
    return _edits_of(mask.tobytes(), vocabulary)


@lru_cache(maxsize=32)  # rows often stay within one place of a grammar, such as a string, and others are there as well
def _edits_of(words: bytes, vocabulary: int) -> tuple[Edits, bool]:
    mask = np.frombuffer(words, np.uint32)
    assert 32 * len(mask) >= vocabulary, "the mask is narrower than the logits"
    only = 2 * int(np.bitwise_count(mask).sum()) <= vocabulary
    if only:
        return make_edits(Kind.ALLOW, _tokens(mask, vocabulary)), True
    return make_edits(Kind.FORBID, _tokens(~mask, vocabulary)), False


def allow_fewer(edits: Edits, mask: Words, vocabulary: int) -> Edits:
    """The edits of a row that is masked and has a list of allowed tokens: those of the list that the mask allows."""
    kept: Edits = edits[(edits["kind"] != Kind.ALLOW) | _unpack(mask, vocabulary)[edits["token"]]]
    return kept


def forbidden_by(masks: RowMasks, rows: Sequence[int], vocabulary: int, device: torch.device) -> Tensor:
    """What the masks of ``rows`` forbid, nothing for those without one: bool [rows, vocabulary]."""
    forbidden = np.zeros((len(rows), vocabulary), np.bool_)
    for place, row in enumerate(rows):
        if row in masks:
            np.logical_not(_unpack(masks[row], vocabulary), out=forbidden[place])
    return send(forbidden, device)


def _tokens(mask: Words, vocabulary: int) -> npt.NDArray[np.signedinteger]:
    """The tokens whose bits are set; of a few tokens, only the words that have any are unpacked."""
    places = np.flatnonzero(mask)
    found = np.flatnonzero(np.unpackbits(mask[places].view(np.uint8), bitorder="little").view(np.bool_))
    tokens: npt.NDArray[np.signedinteger] = 32 * places[found >> 5] + (found & 31)
    return tokens[tokens < vocabulary]


def _unpack(mask: Words, vocabulary: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(mask.view(np.uint8), count=vocabulary, bitorder="little").view(np.bool_)
