"""The delta rule of Kimi Linear (Kimi Team 2025): every feature of a key has a decay of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime import gates
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.delta import unit
from lsv_runtime.nn.recurrent.ssd import decays
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.nn.recurrent.weights import take_float
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

_CHUNK = 16
"""Tokens that are computed as one system of equations. Each pair of them has a decay for every feature of a key."""


class ChannelDelta(Bindable):
    """``s = exp(g)·s`` by features of the key, then ``s += k⊗(β·(v - k·s))`` and ``y = q·s`` for each head, in float32.

    q, k, v and gate [T, heads * dim], strength [T, heads] -> [T, heads * dim] of float32. q and k get unit length, q is
    scaled by ``dim ** -0.5``. ``β = sigmoid(strength)`` and ``g = -exp(A)·softplus(gate + bias)``; with a ``lowest``
    that is ``lowest·sigmoid(exp(A)·(gate + bias))``. ``a_shape`` is how the checkpoint has the A of all heads.
    """

    op: ClassVar[str] = "scan.channel_delta"
    capturable: ClassVar[bool] = False

    def __init__(
        self, w: Weights, heads: int, dim: int, *, lowest: float | None = None, a_shape: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.a_log = take_float(w, "A_log", *(a_shape or (heads,)))
        self.dt_bias = take_float(w, "dt_bias", heads * dim)
        self.heads, self.dim, self.lowest = heads, dim, lowest
        self.part = StatePart("delta", (heads, dim, dim), torch.float32)

    def spec(self) -> OpSpec:
        flags = frozenset() if self.lowest is None else frozenset(("lowest",))
        return OpSpec(self.op, "float32", shape={"heads": self.heads, "dim": self.dim}, flags=flags)

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        gate: torch.Tensor,
        strength: torch.Tensor,
        states: RowStates,
    ) -> torch.Tensor:
        q, k, v = (part.float().reshape(-1, self.heads, self.dim) for part in (q, k, v))
        inputs = (unit(q) * self.dim**-0.5, unit(k), v, self._logs(gate.float()), gates.sigmoid(strength.float()))
        return states.advance(self.part.name, partial(scan, _scan_chunk, _CHUNK), *inputs).flatten(1)

    def _logs(self, gate: torch.Tensor) -> torch.Tensor:
        """Logarithms of decays [T, heads, dim]."""
        gate, rate = (gate + self.dt_bias).view(-1, self.heads, self.dim), self.a_log.exp().view(-1, 1)
        if self.lowest is not None:
            return self.lowest * gates.sigmoid(rate * gate)
        return -rate * gates.softplus(gate)


def _scan_chunk(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, logs: torch.Tensor, strength: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """state [n, heads, dim, dim], all others [n, length, heads, dim] but strengths [n, length, heads].

    As where a head decays as a whole, but the products of queries and keys are sums of features that decay apart.
    """
    q, k, v, logs, strength = (part.transpose(1, 2) for part in (q, k, v, logs, strength))
    logs = logs.cumsum(-2)
    between, since = decays(logs.mT), logs.exp()
    keys = torch.einsum("nhid,nhjd,nhdij->nhij", k, k, between)
    queries = torch.einsum("nhid,nhjd,nhdij->nhij", q, k, between)
    strong = strength[..., None]
    wanted = strong * (v - (since * k) @ state)
    added = torch.linalg.solve_triangular((strong * keys).tril(-1), wanted, upper=False, unitriangular=True)
    y = (since * q) @ state + queries @ added
    ends = (logs[..., -1:, :] - logs).exp()
    return y.transpose(1, 2), state * logs[..., -1, :, None].exp() + (k * ends).mT @ added
