"""Short causal convolutions along a request's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from lsv.offers import OpSpec
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.mlp import find_activation
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Piece, Weights


class CausalConv(Bindable):
    """Each channel by itself, over its last ``width`` tokens: x [T, channels] -> activation(y) [T, channels].

    Sums are in float32, in the order of tokens. The state is what it has seen of the last ``width - 1`` tokens.
    ``parts`` are the channels of convolutions that the checkpoint has below ``w`` under names of their own.
    """

    op: ClassVar[str] = "conv.causal"
    capturable: ClassVar[bool] = False

    def __init__(
        self,
        w: Weights,
        channels: int,
        width: int,
        *,
        activation: str | None,
        bias: bool,
        parts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.weight = w.take("weight", (channels, 1, width)) if parts is None else _take_parts(w, parts, width)
        self.bias = w.take("bias", (channels,)) if bias else None
        self.activation = activation
        self.activate = (lambda x: x) if activation is None else find_activation(activation)
        self.part = StatePart("conv", (width - 1, channels), self.weight.dtype)

    def spec(self) -> OpSpec:
        channels, _, width = self.weight.shape
        flags = {name for name in (self.activation, "bias" if self.bias is not None else None) if name}
        shape = {"channels": channels, "width": width}
        return OpSpec(self.op, dtype_name(self.weight.dtype), shape=shape, flags=frozenset(flags))

    def reference(self, x: torch.Tensor, states: RowStates) -> torch.Tensor:
        return states.advance(self.part.name, self._convolve, x)

    def _convolve(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length, kept = x.shape[1], state.shape[1]
        seen = torch.cat((state, x), dim=1)
        weights = self.weight[:, 0].float()
        y = seen[:, :length].float() * weights[:, 0]
        for place in range(1, kept + 1):
            y += seen[:, place : place + length].float() * weights[:, place]
        if self.bias is not None:
            y += self.bias.float()
        return self.activate(y.to(x.dtype)), seen[:, length:]


def _take_parts(w: Weights, parts: Mapping[str, int], width: int) -> nn.Parameter:
    """The weights of several convolutions, one after another: [channels, 1, width]."""
    pieces, begin, rest = [], 0, (slice(0, 1), slice(0, width))
    for name, channels in parts.items():
        source, target = slice(0, channels), slice(begin, begin + channels)
        pieces.append(Piece((w / name / "weight").name, (channels, 1, width), (source, *rest), (target, *rest)))
        begin += channels
    return w.declare((begin, 1, width), pieces)
