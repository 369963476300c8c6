"""The plainest recurrence: each channel keeps a share of what it has, and adds what it is given."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.ssd import decays
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.ops import Bindable

_CHUNK = 16
"""Tokens that are computed as one sum. Each pair of them has a share for every channel."""


class Diagonal(Bindable):
    """``s = exp(g)·s + x`` and ``y = s`` for each channel, in float32: x and g [T, channels] -> [T, channels]."""

    op: ClassVar[str] = "scan.diagonal"
    capturable: ClassVar[bool] = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.part = StatePart("diagonal", (channels,), torch.float32)

    def spec(self) -> OpSpec:
        return OpSpec(self.op, "float32", shape={"channels": self.channels})

    def reference(self, x: torch.Tensor, logs: torch.Tensor, states: RowStates) -> torch.Tensor:
        return states.advance(self.part.name, partial(scan, _scan_chunk, _CHUNK), x.float(), logs.float())


def _scan_chunk(state: torch.Tensor, x: torch.Tensor, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """state [n, channels], x and logarithms of shares [n, length, channels]."""
    sums = logs.cumsum(1)
    y = torch.einsum("ncij,njc->nic", decays(sums.mT), x) + sums.exp() * state[:, None]
    return y, y[:, -1]
