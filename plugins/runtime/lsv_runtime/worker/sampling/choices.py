"""``CHOICE`` records, which say how requests' tokens are chosen: made once a request, and joined for a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lsv.request.params import SamplingParams
from lsv_runtime.nn import sample_ops
from lsv_runtime.nn.sampling import CHOICE, WHOLE, Choices

_SEED_MASK = (1 << 64) - 1


def make_choice(params: SamplingParams, seed: int) -> bytes:
    """The record of a request but for what changes from step to step: its edits, and the position it draws for."""
    record = np.zeros((), CHOICE)
    record["top_p"] = WHOLE
    if not params.greedy:
        record["rate"], record["seed"] = sample_ops.rate(params.temperature), seed & _SEED_MASK
        record["top_k"] = max(params.top_k, 0)
        record["top_p"], record["min_p"] = round(params.top_p * WHOLE), round(params.min_p * WHOLE)
    return record.tobytes()


def join_choices(records: Iterable[bytes]) -> Choices:
    """One row for each record."""
    return np.frombuffer(bytearray(b"".join(records)), CHOICE)
