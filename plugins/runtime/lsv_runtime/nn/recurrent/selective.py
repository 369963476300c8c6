"""The selective state space of Mamba (Gu & Dao 2023), whose channels have decays of their own."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime import gates
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.nn.recurrent.weights import take_float
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

_SPAN = 256
"""Tokens whose states are held at a time."""


class SelectiveScan(Bindable):
    """``s = exp(dt·A)·s + dt·x·b`` and ``y = s·c + D·x`` for each channel, in float32.

    x and dt [T, channels], b and c [T, size] -> [T, channels] of float32. ``dt`` has its bias (``dt_proj.bias``) added
    and is made positive by softplus. With ``heads``, channels are cut into these, which have a b and a c each (Zamba):
    b and c are [T, heads * size], and the checkpoint has the weights [heads, channels of a head, …].
    """

    op: ClassVar[str] = "scan.selective"
    capturable: ClassVar[bool] = False

    def __init__(self, w: Weights, channels: int, size: int, *, heads: int | None = None) -> None:
        super().__init__()
        shape = (channels,) if heads is None else (heads, channels // heads)
        self.a_log, self.skip = take_float(w, "A_log", *shape, size), take_float(w, "D", *shape)
        bias = (w / "dt_proj", "bias") if heads is None else (w, "dt_proj_bias")
        self.dt_bias = take_float(*bias, *shape)
        self.channels, self.size, self.heads = channels, size, heads or 1
        self.part = StatePart("ssm", (channels, size), torch.float32)

    def spec(self) -> OpSpec:
        shape = {"channels": self.channels, "state": self.size}
        return OpSpec(self.op, "float32", shape=shape if self.heads == 1 else {**shape, "heads": self.heads})

    def reference(
        self, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, states: RowStates
    ) -> torch.Tensor:
        x = x.float()
        dt = gates.softplus(dt.float() + self.dt_bias.flatten())
        y = states.advance(self.part.name, self._scan, x, dt, b.float(), c.float())
        return y + self.skip.flatten() * x

    def _scan(
        self, state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Heads are scanned like pieces of rows: none sees another."""
        pieces = len(x)
        a = -self.a_log.exp().view(self.heads, 1, -1, self.size)
        if self.heads > 1:
            a = a.repeat(pieces, 1, 1, 1)
        state = state.reshape(pieces * self.heads, -1, self.size)
        y, state = scan(partial(_scan_span, a), _SPAN, state, *(self._cut(part) for part in (x, dt, b, c)))
        y = y.view(pieces, self.heads, *x.shape[1:2], -1).transpose(1, 2).flatten(2)
        return y, state.reshape(pieces, self.channels, self.size)

    def _cut(self, part: torch.Tensor) -> torch.Tensor:
        """[pieces, length, features of all heads] -> [pieces * heads, length, features of a head]."""
        return part.reshape(*part.shape[:2], self.heads, -1).transpose(1, 2).flatten(0, 1)


def _scan_span(
    a: torch.Tensor, state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """a [n, 1, channels, size], state [n, channels, size], x and dt [n, length, channels], b and c [n, length, size].

    In chunks of about the square root of the length: all at once from an empty state, token by token, and then
    what each gets from those before it, chunk by chunk.
    """
    length = x.shape[1]
    size = max(1, math.isqrt(length))
    count = -(-length // size)
    fill = (0, 0, 0, count * size - length)  # tokens with dt = 0 change nothing
    x, dt, b, c = (functional.pad(part, fill).view(len(part), count, size, -1) for part in (x, dt, b, c))
    local = x.new_zeros(len(x), count, *state.shape[1:])
    inner = []
    for place in range(size):
        fresh = (dt[:, :, place] * x[:, :, place])[..., None] * b[:, :, place, None]
        local = local * (dt[:, :, place, :, None] * a).exp() + fresh
        inner.append(_read(local, c[:, :, place]))
    y = torch.stack(inner, dim=2)
    sums = dt.cumsum(2)
    for chunk in range(count):
        carried = (sums[:, chunk, :, :, None] * a).exp() * state[:, None]
        y[:, chunk] += _read(carried, c[:, chunk])
        state = carried[:, -1] + local[:, chunk]
    return y.flatten(1, 2)[:, :length], state


def _read(state: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """state [..., channels, size] and c [..., size] -> [..., channels].

    A matrix product would round differently for one row than for several.
    """
    return (state * c[..., None, :]).sum(-1)
