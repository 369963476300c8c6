"""Which tokens a query sees in a layer whose attention is block-sparse.

Source: the masks of the kernels that Phi-3-small is published with (Microsoft 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPattern:
    """Tokens of a row in blocks of ``size``: a query sees those before it in the last ``local`` blocks, its own
    included, and in every ``stride``-th block. These have nothing to do with the pages of a cache.
    """

    size: int
    local: int
    stride: int
    shift: int
    """By how many blocks the ``stride``-th blocks move towards the start from one head to the next."""

    first_head: int = 0
    """The number of this rank's first head in the whole model."""

    @property
    def full(self) -> int:
        """Up to how many tokens every token sees all before it."""
        return self.local * self.size

    def see(self, positions: torch.Tensor, count: int, heads: int) -> torch.Tensor:
        """Which of a row's ``count`` tokens its queries at ``positions`` int64 [..., T] see in each head: bool
        [..., heads, T, count].
        """
        keys = torch.arange(count, device=positions.device)
        numbers = torch.arange(self.first_head, self.first_head + heads, device=positions.device)
        block, at = keys // self.size, positions[..., None]
        stripes = (block + numbers[:, None] * self.shift + 1) % self.stride == 0
        near, before = (at // self.size - block < self.local), keys <= at
        return (near.unsqueeze(-3) | stripes[:, None]) & before.unsqueeze(-3)
