"""Whisper's rules for timestamps and suppressed tokens, as a logits processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv_multimodal.families.whisper.rules import Timestamps, WhisperRules
from lsv_runtime.logits_processor import History, LogitsProcessor
from lsv_runtime.nn import sample_ops

_FORBIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may follow: other tokens from ``others`` on, and timestamps from ``low`` to ``high - 1``."""

    others: int
    low: int
    high: int

    @classmethod
    def after(cls, output: npt.NDArray[np.int32], timestamps: Timestamps, vocab_size: int) -> Allowed:
        first = timestamps.first
        if not len(output):
            return cls(first, first, min(first + timestamps.max_initial + 1, vocab_size))
        if output[-1] < first:
            return cls(0, max(int(output.max()) + 1, first), vocab_size)
        if len(output) == 1 or output[-2] >= first:
            return cls(0, vocab_size, vocab_size)
        return cls(timestamps.text_end, int(output[-1]), vocab_size)


@dataclass(frozen=True, slots=True)
class Answer:
    """A request's rules, and what it has answered. ``never`` and ``not_begin`` int64 are on the logits' device."""

    never: Tensor
    not_begin: Tensor
    timestamps: Timestamps | None
    history: History

    def forbid(self, logits: Tensor) -> int | None:
        """Forbid, in ``logits`` float32 [vocabulary], what may not come next. In place.

        Returns the first timestamp where both these and other tokens may come, so that they have to be compared.
        """
        output = self.history.output
        logits.index_fill_(0, self.never, _FORBIDDEN)
        if not len(output):
            logits.index_fill_(0, self.not_begin, _FORBIDDEN)
        if self.timestamps is None:
            return None
        first, allowed = self.timestamps.first, Allowed.after(output, self.timestamps, len(logits))
        logits[: allowed.others] = logits[first : allowed.low] = logits[allowed.high :] = _FORBIDDEN
        return first if allowed.others < first and allowed.low < allowed.high else None


class TimestampRules(LogitsProcessor[Answer]):
    """Forbids what may not come next, and all but timestamps where these together outweigh each other token."""

    def begin(self, arguments: WhisperRules, history: History) -> Answer:
        never, not_begin = self._put(arguments.never), self._put(arguments.not_begin)
        return Answer(never, not_begin, arguments.timestamps, history)

    def apply(self, logits: Tensor, states: Sequence[Answer]) -> Tensor:
        borders = [answer.forbid(row) for answer, row in zip(states, logits, strict=True)]
        for border in {one for one in borders if one is not None}:
            rows = [row for row, one in enumerate(borders) if one == border]
            if len(rows) == len(logits):
                prefer_timestamps(logits, border)
            else:
                which = torch.tensor(rows, device=logits.device)
                logits.index_copy_(0, which, prefer_timestamps(logits.index_select(0, which), border))
        return logits

    def _put(self, tokens: Sequence[int]) -> Tensor:
        known = [token for token in tokens if 0 <= token < self.vocab_size]
        return torch.tensor(known, dtype=torch.int64, device=self.device)


def prefer_timestamps(logits: Tensor, first: int) -> Tensor:
    """Forbid the tokens before ``first`` in rows where all others together are likelier than each of these. In place.

    ``logits`` float32 [rows, vocabulary]. Compared are the integer weights that tokens are drawn by: their sums are
    exact, so that every device comes to the same answer.
    """
    likeliest = logits[:, :first].amax(dim=-1, keepdim=True)
    rivals = torch.cat((likeliest, logits[:, first:]), dim=-1)
    weights = sample_ops.weigh(rivals, torch.full_like(rivals[:, 0], sample_ops.rate(1.0)))
    outweighed = weights[:, 1:].sum(dim=-1, keepdim=True) > weights[:, :1]
    logits[:, :first] += torch.zeros_like(likeliest).masked_fill_(outweighed, _FORBIDDEN)
    return logits
