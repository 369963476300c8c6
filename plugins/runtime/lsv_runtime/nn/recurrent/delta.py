"""The gated delta rule (Yang et al. 2024): a linear attention that overwrites what it stored under a like key."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime import gates
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.ssd import decays
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.nn.recurrent.weights import take_float
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

_CHUNK = 64
"""Tokens that are computed as one system of equations."""


class GatedDelta(Bindable):
    """``s = exp(g)·s``, then ``s += k⊗(β·(v - k·s))`` and ``y = q·s`` for each value head, in float32.

    q and k [T, key_heads * key_dim], v [T, heads * dim], gate and strength [T, heads] -> [T, heads * dim] of float32.
    q and k get unit length, q is scaled by ``key_dim ** -0.5``; consecutive value heads share a key head.
    ``g = -exp(A)·softplus(gate + bias)`` and ``β = most·sigmoid(strength)``.
    """

    op: ClassVar[str] = "scan.delta"
    capturable: ClassVar[bool] = False

    def __init__(self, w: Weights, heads: int, dim: int, key_heads: int, key_dim: int, *, most: float = 1.0) -> None:
        super().__init__()
        self.a_log, self.dt_bias = (take_float(w, name, heads) for name in ("A_log", "dt_bias"))
        self.heads, self.dim, self.key_heads, self.key_dim, self.most = heads, dim, key_heads, key_dim, most
        self.part = StatePart("delta", (heads, key_dim, dim), torch.float32)

    def spec(self) -> OpSpec:
        shape = {"heads": self.heads, "dim": self.dim, "key_heads": self.key_heads, "key_dim": self.key_dim}
        return OpSpec(self.op, "float32", shape=shape, flags=frozenset() if self.most == 1.0 else frozenset(("most",)))

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        gate: torch.Tensor,
        strength: torch.Tensor,
        states: RowStates,
    ) -> torch.Tensor:
        q, k = (unit(part.float().reshape(-1, self.key_heads, self.key_dim)) for part in (q, k))
        v = v.float().reshape(-1, self.heads, self.dim)
        logs = -self.a_log.exp() * gates.softplus(gate.float() + self.dt_bias)
        scale, strength = self.key_dim**-0.5, self.most * gates.sigmoid(strength.float())
        return states.advance(self.part.name, self._scan, q * scale, k, v, logs, strength).flatten(1)

    def _scan(
        self,
        state: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        logs: torch.Tensor,
        strength: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        share = self.heads // self.key_heads
        q, k = (part.repeat_interleave(share, dim=2) for part in (q, k))
        return scan(_scan_chunk, _CHUNK, state, q, k, v, logs, strength)


def unit(x: torch.Tensor) -> torch.Tensor:
    """x [..., dim] with length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _scan_chunk(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, logs: torch.Tensor, strength: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """state [n, heads, key_dim, dim], q and k [n, length, heads, key_dim], v [n, length, heads, dim], logarithms of
    decays and strengths [n, length, heads].

    What tokens add to the state depends on what earlier ones of the chunk have added: a triangular system of equations.
    """
    q, k, v, logs, strength = (part.transpose(1, 2) for part in (q, k, v, logs, strength))
    logs = logs.cumsum(-1)
    between, since = decays(logs), logs.exp()[..., None]
    strong = strength[..., None]
    system = (k @ k.mT * between * strong).tril(-1)
    wanted = strong * (v - since * (k @ state))
    added = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    y = since * (q @ state) + (q @ k.mT * between) @ added
    ends = (logs[..., -1:] - logs).exp()[..., None]
    return y.transpose(1, 2), state * logs[..., -1:, None].exp() + (k * ends).mT @ added
