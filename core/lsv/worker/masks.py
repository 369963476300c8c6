"""What grammars let rows sample: a bit a token, as the engine sends them, to what forbids all other tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.devices.staging import send
from lsv.nn.sampling import Edits, Kind
from lsv.scheduler.plan import Masks
from lsv.worker.edits import make_edits

Bits = npt.NDArray[np.uint8]
"""Those of one row, eight tokens a byte, the lowest bits first."""

RowMasks = Mapping[int, Bits]
"""By row of the logits."""

NO_MASKS: RowMasks = {}


def read_masks(masks: Masks, sampled: Sequence[int]) -> RowMasks:
    """The masks of a step, by place among the rows of its plan that sample."""
    bits = np.frombuffer(masks.bits, np.uint8).reshape(len(masks.rows), -1)
    of_row = dict(zip(masks.rows, bits, strict=True))
    return {place: of_row[row] for place, row in enumerate(sampled) if row in of_row}


def mask_edits(bits: Bits, vocabulary: int) -> tuple[Edits, bool]:
    """A mask as edits of its row, and whether that takes forbidding all that no edit allows.

    Where most tokens may come, the few others are forbidden instead.
    """
    allowed = _unpack(bits, vocabulary)
    only = 2 * np.count_nonzero(allowed) <= vocabulary
    if only:
        return make_edits(Kind.ALLOW, np.flatnonzero(allowed)), True
    return make_edits(Kind.FORBID, np.flatnonzero(~allowed)), False


def allow_fewer(edits: Edits, bits: Bits, vocabulary: int) -> Edits:
    """The edits of a row that is masked and has a list of allowed tokens: those of the list that the mask allows."""
    allowed = _unpack(bits, vocabulary)
    kept: Edits = edits[(edits["kind"] != Kind.ALLOW) | allowed[edits["token"]]]
    return kept


def forbidden_by(masks: RowMasks, rows: Sequence[int], vocabulary: int, device: torch.device) -> Tensor:
    """What the masks of ``rows`` forbid, nothing for those without one: bool [rows, vocabulary]."""
    forbidden = np.zeros((len(rows), vocabulary), np.bool_)
    for place, row in enumerate(rows):
        if row in masks:
            np.logical_not(_unpack(masks[row], vocabulary), out=forbidden[place])
    return send(forbidden, device)


def _unpack(bits: Bits, vocabulary: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(bits, count=vocabulary, bitorder="little").view(np.bool_)
