"""A request's own tokens, kept in the KV cache where others keep keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.chosen import each_row
from lsv_runtime.nn.step import Step

_BITS = 31
_SIZE = 32


class KeptTokens(nn.Module):
    """Caches the ids of a step's tokens and gives texts: all tokens up to one, those of earlier steps included.

    An id is kept as the signs of its bits, which every dtype of a cache can hold.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.layer = AttentionLayer(0, 1, 1, _SIZE, 1.0, gathered=True)
        self.vocab_size = vocab_size

    def forward(self, step: Step, dtype: torch.dtype) -> Iterator[tuple[list[int], torch.Tensor, list[int]]]:
        """Of each row that has tokens which go through the head: these by their index in the step, the row's text up to
        the last of them, ids int64 [length], and their places in the text.
        """
        signs = _to_signs(step.ids, dtype)
        plan = step.attention[self.layer.group]
        known, _ = step.backend.gather(signs, signs, self.layer, step.cache, plan)
        ids = _to_ids(known).clamp_(max=self.vocab_size - 1)  # rows without a request have whatever memory holds
        wanted = step.logits_rows.tolist()
        for row, text in each_row(step.backend.lengths(plan)):
            tokens = [token for token in wanted if row.start <= token < row.stop]
            places = [token - row.stop + text.stop - text.start for token in tokens]
            if tokens:
                yield tokens, ids[text][: max(places) + 1], places


def _to_signs(ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """ids int64 [T] -> [T, 1, size] of 1 and -1."""
    bits = ids[:, None] >> torch.arange(_SIZE, device=ids.device) & 1
    return (2 * bits - 1).to(dtype)[:, None]


def _to_ids(signs: torch.Tensor) -> torch.Tensor:
    """[C, 1, size] -> ids int64 [C]."""
    bits = (signs[:, 0, :_BITS] > 0).long()
    return (bits << torch.arange(_BITS, device=signs.device)).sum(-1)
