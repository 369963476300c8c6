"""What grammars let rows sample: a bit a token, as the engine sends them, to what forbids all other tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.devices.staging import send
from lsv.scheduler.plan import Masks

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


def forbidden_by(masks: RowMasks, rows: Sequence[int], vocabulary: int, device: torch.device) -> Tensor:
    """What the masks of ``rows`` forbid, nothing for those without one: bool [rows, vocabulary]."""
    forbidden = np.zeros((len(rows), vocabulary), np.bool_)
    for place, row in enumerate(rows):
        if row in masks:
            allowed = np.unpackbits(masks[row], count=vocabulary, bitorder="little")
            np.logical_not(allowed.view(np.bool_), out=forbidden[place])
    return send(forbidden, device)
