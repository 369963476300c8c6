"""The selective state space of Mamba (Gu & Dao 2023), whose channels have decays of their own."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch.nn import functional

from lsv.attention.states import StatePart
from lsv.nn.recurrent.states import RowStates
from lsv.nn.recurrent.weights import take_float
from lsv.offers import OpSpec
from lsv.ops import Bindable
from lsv.weights.place import Weights

_SPAN = 256
"""Tokens whose states are held at a time."""


class SelectiveScan(Bindable):
    """``s = exp(dt·A)·s + dt·x·b`` and ``y = s·c + D·x`` for each channel, in float32.

    x and dt [T, channels], b and c [T, size] -> [T, channels] of float32. ``dt`` has its bias (``dt_proj.bias``) added
    and is made positive by softplus.
    """

    op: ClassVar[str] = "scan.selective"
    capturable: ClassVar[bool] = False

    def __init__(self, w: Weights, channels: int, size: int) -> None:
        super().__init__()
        self.a_log = take_float(w, "A_log", channels, size)
        self.skip = take_float(w, "D", channels)
        self.dt_bias = take_float(w / "dt_proj", "bias", channels)
        self.channels, self.size = channels, size
        self.part = StatePart("ssm", (channels, size), torch.float32)

    def spec(self) -> OpSpec:
        return OpSpec(self.op, "float32", shape={"channels": self.channels, "state": self.size})

    def reference(
        self, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, states: RowStates
    ) -> torch.Tensor:
        x = x.float()
        dt = functional.softplus(dt.float() + self.dt_bias)
        return states.advance(self.part.name, self._scan, x, dt, b.float(), c.float()) + self.skip * x

    def _scan(
        self, state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = []
        for begin in range(0, x.shape[1], _SPAN):
            cut = slice(begin, begin + _SPAN)
            y, state = self._scan_span(state, x[:, cut], dt[:, cut], b[:, cut], c[:, cut])
            parts.append(y)
        return torch.cat(parts, dim=1), state

    def _scan_span(
        self, state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """In chunks of about the square root of the length: all at once from an empty state, token by token, and then
        what each gets from those before it, chunk by chunk.
        """
        length = x.shape[1]
        a, size = -self.a_log.exp(), max(1, math.isqrt(length))
        count = -(-length // size)
        fill = (0, 0, 0, count * size - length)  # tokens with dt = 0 change nothing
        x, dt, b, c = (functional.pad(part, fill).view(len(part), count, size, -1) for part in (x, dt, b, c))
        local = x.new_zeros(len(x), count, self.channels, self.size)
        inner = []
        for place in range(size):
            fresh = (dt[:, :, place] * x[:, :, place])[..., None] * b[:, :, place, None]
            local = local * (dt[:, :, place, :, None] * a).exp() + fresh
            inner.append((local @ c[:, :, place, :, None])[..., 0])
        y = torch.stack(inner, dim=2)
        sums = dt.cumsum(2)
        for chunk in range(count):
            carried = (sums[:, chunk, :, :, None] * a).exp() * state[:, None]
            y[:, chunk] += (carried @ c[:, chunk, :, :, None])[..., 0]
            state = carried[:, -1] + local[:, chunk]
        return y.flatten(1, 2)[:, :length], state
