"""Log probabilities as users see them: of the chosen token and of the most likely ones, with ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lsv.nn.sampling import Describe
from lsv.scheduler.plan import Logprobs

_PLAIN = Describe(0, torch.float32)


def describe(
    logits: Tensor, chosen: Tensor, wanted: Sequence[int], rows: Sequence[int] | None = None, op: Describe = _PLAIN
) -> list[Logprobs]:
    """For each row one position: the chosen token, then the row's ``wanted`` most likely ones.

    The chosen token is repeated among these if it is one of them: a position has ``wanted + 1`` entries.

    ``logits`` finite [any, vocabulary], of which ``rows`` are described (None: all); ``chosen`` int64 [rows]. Adding a
    constant to a row changes nothing, so log probabilities serve as well as logits.
    """
    meant = np.arange(len(logits)) if rows is None else np.array(rows, np.int64)
    found = op(logits, meant, chosen.cpu().numpy(), max(wanted))
    return [_position(entries[: 1 + count].tolist()) for entries, count in zip(found, wanted, strict=True)]


def _position(entries: list[tuple[float, float, float]]) -> Logprobs:
    """(id, log probability, rank) triples as one position."""
    ids, values, ranks = zip(*entries, strict=True)
    return Logprobs((tuple(map(int, ids)),), (values,), (tuple(map(int, ranks)),))


def join(positions: Iterable[Logprobs]) -> Logprobs:
    """Several runs of positions as one."""
    parts = list(positions)
    return Logprobs(
        tuple(row for part in parts for row in part.ids),
        tuple(row for part in parts for row in part.values),
        tuple(row for part in parts for row in part.ranks),
    )
