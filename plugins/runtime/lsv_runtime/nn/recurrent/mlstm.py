"""The matrix memory of xLSTM (Beck et al. 2024): linear attention with exponential gates."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.ops import Bindable

_CHUNK = 64
"""Tokens that are computed as one product of matrices."""


class MatrixMemory(Bindable):
    """``s = σ(f)·s + exp(i)·k⊗v``, ``n = σ(f)·n + exp(i)·k``, ``y = q·s / max(|q·n|, 1)`` for each head, in float32.

    q and k [T, heads * key_dim], v [T, heads * dim], gates i and f [T, heads] -> [T, heads * dim] of float32. q is
    scaled by ``key_dim ** -0.5``. The state has n beside s, both over ``exp(m)``, and m in a row of its own.
    """

    op: ClassVar[str] = "scan.mlstm"
    capturable: ClassVar[bool] = False

    def __init__(self, heads: int, key_dim: int, dim: int, eps: float) -> None:
        super().__init__()
        self.heads, self.key_dim, self.dim, self.eps = heads, key_dim, dim, eps
        self.part = StatePart("mlstm", (heads, key_dim + 1, dim + 1), torch.float32)

    def spec(self) -> OpSpec:
        return OpSpec(self.op, "float32", shape={"heads": self.heads, "key_dim": self.key_dim, "dim": self.dim})

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor, states: RowStates
    ) -> torch.Tensor:
        q, k, v = (part.float().reshape(len(part), self.heads, -1) for part in (q, k, v))
        inputs = (q * self.key_dim**-0.5, k, functional.pad(v, (0, 1), value=1.0), i.float())
        return states.advance(self.part.name, self._scan, *inputs, functional.logsigmoid(f.float())).flatten(1)

    def _scan(
        self,
        state: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        gains: torch.Tensor,
        logs: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = (state[:, :, :-1], state[:, :, -1, :1])
        y, (memory, most) = scan(self._scan_chunk, _CHUNK, start, q, k, v, gains, logs)
        return y, torch.cat((memory, functional.pad(most[..., None], (0, self.dim))), dim=2)

    def _scan_chunk(
        self,
        state: tuple[torch.Tensor, torch.Tensor],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        gains: torch.Tensor,
        logs: torch.Tensor,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The state is memory [n, heads, key_dim, dim + 1] over exp of the most [n, heads, 1]; q and k
        [n, length, heads, key_dim], v [n, length, heads, dim + 1] whose last feature is one, logarithms of gates
        [n, length, heads].
        """
        memory, most = state
        q, k, v, gains, logs = (part.transpose(1, 2) for part in (q, k, v, gains, logs))
        sums = logs.cumsum(-1)
        between = sums[..., :, None] - sums[..., None, :] + gains[..., None, :]
        later = torch.ones(between.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        between, carried = between.masked_fill(later, -torch.inf), sums + most
        largest = torch.maximum(between.amax(-1), carried)
        weights = (between - largest[..., None]).exp()
        y = (q @ k.mT * weights) @ v + (carried - largest).exp()[..., None] * (q @ memory)
        y = y[..., :-1] / (torch.maximum(y[..., -1:].abs(), (-largest)[..., None].exp()) + self.eps)
        kept, most = weights[..., -1, :, None], largest[..., -1:]
        return y.transpose(1, 2), (memory * (carried[..., -1:] - most).exp()[..., None] + (k * kept).mT @ v, most)
