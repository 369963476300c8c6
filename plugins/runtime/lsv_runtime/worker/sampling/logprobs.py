"""Log probabilities as users see them: of the chosen token and of the most likely ones, with ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lsv.scheduler.plan import Logprobs
from lsv_runtime.devices.staging import Fetched, fetch, send
from lsv_runtime.nn.sampling import Describe, told

_PLAIN = Describe(0, torch.float32)


@dataclass(frozen=True, slots=True)
class Described:
    """Rows of logits whose log probabilities are on their way from the device."""

    rows: Sequence[int]
    wanted: Sequence[int]
    """How many of the likeliest tokens of each."""
    coming: Fetched

    def read(self) -> dict[int, Logprobs]:
        """Once the device has come past an event after the call of ``describe``: one position for each row, but for
        rows that have no token or are not finite.
        """
        numbers = self.coming.read()
        sound = np.flatnonzero(numbers[:, -1, 2])
        found = zip(sound.tolist(), told(numbers[sound]), strict=True)
        return {self.rows[place]: _position(entries[: 1 + self.wanted[place]].tolist()) for place, entries in found}


def describe(
    logits: Tensor, tokens: Tensor, wanted: Sequence[int], rows: Sequence[int] | None = None, op: Describe = _PLAIN
) -> Described:
    """Of each row one position: its token, then its ``wanted`` most likely ones. Does not wait for the device.

    The token is repeated among these if it is one of them: a position has ``wanted + 1`` entries.

    ``logits`` [any, vocabulary], of which ``rows`` are described (None: all); ``tokens`` int64 [any] on their device,
    negative for rows that have none. Adding a constant to a row changes nothing, so log probabilities serve as well as
    logits.
    """
    meant = range(len(logits)) if rows is None else rows
    which = send(np.array(meant, np.int64), logits.device)
    return Described(meant, wanted, fetch(op(logits, which, tokens, max(wanted))))


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
