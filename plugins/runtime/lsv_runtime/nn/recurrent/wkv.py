"""What RWKV 4 (Peng et al. 2023) keeps: the token before, and an average of values that forgets."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.nn.recurrent.weights import take_float
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Weights

_CHUNK = 16
"""Tokens that are computed as one sum. Each pair of them has a weight for every channel."""


class TokenShift(Bindable):
    """What stands at the token before, zeros before the first: x [T, size] -> [T, size]."""

    op: ClassVar[str] = "token_shift"
    capturable: ClassVar[bool] = False

    def __init__(self, w: Weights, size: int, name: str) -> None:
        super().__init__()
        self.part = StatePart(name, (1, size), w.dtype)

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.part.dtype), shape={"size": self.part.shape[1]})

    def reference(self, x: torch.Tensor, states: RowStates) -> torch.Tensor:
        return states.advance(self.part.name, _shift, x)


def _shift(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    seen = torch.cat((state, x), dim=1)
    return seen[:, :-1], seen[:, -1:]


class WeighedAverage(Bindable):
    """The average of the values so far, each channel by itself, in float32: k and v [T, channels] -> [T, channels].

    A value's weight is ``exp(k)``, less by ``exp(time_decay)`` in the exponent for each token since; that of the
    token's own is ``exp(k + time_first)``. The state is the sum of weighed values and of weights, both over
    ``exp(largest)``, and the largest exponent.
    """

    op: ClassVar[str] = "scan.wkv"
    capturable: ClassVar[bool] = False

    def __init__(self, w: Weights, channels: int) -> None:
        super().__init__()
        self.decay, self.first = (take_float(w, name, channels) for name in ("time_decay", "time_first"))
        self.channels = channels
        self.part = StatePart("wkv", (3, channels), torch.float32)

    def spec(self) -> OpSpec:
        return OpSpec(self.op, "float32", shape={"channels": self.channels})

    def reference(self, k: torch.Tensor, v: torch.Tensor, states: RowStates) -> torch.Tensor:
        return states.advance(self.part.name, self._scan, k.float(), v.float())

    def _scan(self, state: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # nothing has been weighed yet where there is no weight
        state[:, 2].masked_fill_(state[:, 1] == 0, -1e38)
        return scan(self._scan_chunk, _CHUNK, state, k, v)

    def _scan_chunk(self, state: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Row ``length`` of exponents is what the state behind the chunk is made of."""
        length, fall = k.shape[1], -self.decay.exp()
        row, column = (torch.arange(count, device=k.device) for count in (length + 1, length))
        since = (row[:, None] - 1 - column)[..., None]
        exponents = torch.where(since < 0, -torch.inf, k[:, None] + since * fall)
        exponents.diagonal(dim1=1, dim2=2).copy_((k + self.first).mT)
        carried = state[:, 2, None] + row[:, None] * fall
        largest = torch.maximum(exponents.amax(dim=2), carried)
        weights, kept = (exponents - largest[:, :, None]).exp(), (carried - largest).exp()
        values = torch.einsum("ntic,nic->ntc", weights, v) + kept * state[:, :1]
        total = weights.sum(dim=2) + kept * state[:, 1:2]
        y = values[:, :length] / total[:, :length]
        return y, torch.stack((values[:, -1], total[:, -1], largest[:, -1]), dim=1)
