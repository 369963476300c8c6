"""The state space of Mamba 2 (Dao & Gu 2024), whose heads decay as wholes."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime import gates
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.nn.recurrent.weights import take_float
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

CHUNK = 64
"""Tokens that are computed as one product of matrices."""


class StateSpace(Bindable):
    """``s = exp(dt·A)·s + dt·x⊗b`` and ``y = s·c + D·x`` for each head, in float32.

    x [T, heads * dim], dt [T, heads], b and c [T, groups * size] -> [T, heads * dim] of float32. Consecutive heads
    share the b and c of a group. ``dt`` has its bias added, is made positive by softplus and held within ``limits``.
    """

    op: ClassVar[str] = "scan.ssd"
    capturable: ClassVar[bool] = False

    def __init__(
        self, w: Weights, heads: int, dim: int, size: int, groups: int, *, limits: tuple[float, float]
    ) -> None:
        super().__init__()
        self.a_log, self.skip, self.dt_bias = (take_float(w, name, heads) for name in ("A_log", "D", "dt_bias"))
        self.heads, self.dim, self.size, self.groups, self.limits = heads, dim, size, groups, limits
        self.part = StatePart("ssm", (heads, dim, size), torch.float32)

    def spec(self) -> OpSpec:
        shape = {"heads": self.heads, "head_dim": self.dim, "state": self.size, "groups": self.groups}
        return OpSpec(self.op, "float32", shape=shape)

    def reference(
        self, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, states: RowStates
    ) -> torch.Tensor:
        x = x.float().reshape(-1, self.heads, self.dim)
        dt = gates.softplus(dt.float() + self.dt_bias).clamp(*self.limits)
        b, c = (part.float().reshape(-1, self.groups, self.size) for part in (b, c))
        y = states.advance(self.part.name, self._scan, x, dt, b, c)
        return (y + self.skip[:, None] * x).flatten(1)

    def _scan(
        self, state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return scan(scan_chunk, CHUNK, state, x * dt[..., None], dt * -self.a_log.exp(), b, c)


def scan_chunk(
    state: torch.Tensor, x: torch.Tensor, logs: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """state [n, heads, dim, size], x [n, length, heads, dim], logs of decays [n, length, heads], b and c
    [n, length, groups, size] with equally many heads each.
    """
    share = x.shape[2] // b.shape[2]
    b, c = (part.repeat_interleave(share, dim=2).transpose(1, 2) for part in (b, c))  # [n, heads, length, size]
    x, logs = x.transpose(1, 2), logs.transpose(1, 2).cumsum(-1)
    between = decays(logs)
    y = (c @ b.mT * between) @ x + (c @ state.mT) * logs.exp()[..., None]
    ends = (logs[..., -1:] - logs).exp()[..., None]
    state = state * logs[..., -1:, None].exp() + (x * ends).mT @ b
    return y.transpose(1, 2), state


def decays(logs: torch.Tensor) -> torch.Tensor:
    """What is left at each token of each earlier one, from running sums of logarithms [..., length] of decays:
    [..., length, length], 0 for later ones.
    """
    length = logs.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=logs.device).triu(1)
    return (logs[..., :, None] - logs[..., None, :]).masked_fill(later, -torch.inf).exp()
