"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Part, Weights
from lsv_runtime.weights.quantizer import joint_format

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_fast": partial(functional.gelu, approximate="tanh"),
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


def find_activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """An activation by its name in config.json; raises ``CheckpointError`` for an unknown one."""
    if name not in _ACTIVATIONS:
        raise CheckpointError(f"config.json: activation {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


class FeedForward(nn.Module):
    """``second(activation(first(x)))``: x [T, inputs] -> [T, outputs].

    ``names`` are those of the two layers in the checkpoint, ``sizes`` = (inputs, inner, outputs).
    """

    def __init__(
        self,
        w: Weights,
        names: tuple[str, str],
        sizes: tuple[int, int, int],
        activation: str,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        inputs, inner, outputs = sizes
        self.first = Column.even(w, names[:1], inputs, inner, bias=bias)
        self.second = Row(w, names[1], inner, outputs, reads=w.shard.split(inner, "inner features"), bias=bias)
        self.activate = find_activation(activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.activate(self.first(x)))  # type: ignore[no-any-return]


class GatedActivation(Bindable):
    """x [..., 2 * size] -> activation(first half) * second half [..., size]. Its op is named after the activation."""

    op: ClassVar[str] = "silu_mul"
    row_invariant: ClassVar[bool] = True

    def __init__(self, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.activate = find_activation(activation)
        self.name = "silu" if activation == "swish" else activation
        self.dtype = dtype

    def spec(self) -> OpSpec:
        return OpSpec(f"{self.name}_mul", dtype_name(self.dtype))

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return self.activate(gate) * up


class ClampedGate(GatedActivation):
    """``gate * sigmoid(alpha * gate) * (up + 1)``: x [..., 2 * size] -> [..., size]. Gate and up are first clamped to
    ``limit`` from above, up to ``-limit`` from below too.
    """

    def __init__(self, dtype: torch.dtype, alpha: float, limit: float) -> None:
        super().__init__("silu", dtype)
        self.name, self.alpha, self.limit = "clamped_swiglu", alpha, limit

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(min=-self.limit, max=self.limit)
        return gate * torch.sigmoid(gate * self.alpha) * (up + 1)


class GatedMLP(Bindable):
    """``down(activation(gate(x)) * up(x))``: x [T, hidden] -> [T, hidden].

    ``names`` are gate, up and down in the checkpoint; of one name, gate and up are the halves of one tensor.
    ``reduce=False`` leaves the sum over the ranks to the caller.
    """

    op: ClassVar[str] = "gated_mlp"

    def __init__(
        self,
        w: Weights,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool = False,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        reduce: bool = True,
    ) -> None:
        super().__init__()
        gate, up, down = names
        share = w.shard.split(intermediate_size, "intermediate features")
        self.gate_up = Column(w, _gate_and_up(gate, up, intermediate_size, share), hidden_size, bias=bias)
        self.act = GatedActivation(activation, w.dtype)
        self.down = Row(w, down, intermediate_size, hidden_size, reads=share, bias=bias, reduce=reduce)

    def spec(self) -> OpSpec:
        gate_up, down = self.gate_up.linear.layer, self.down.linear.layer
        format = joint_format(self.gate_up.linear.format, self.down.linear.format)
        flags = (
            {self.act.name} | ({"bias"} if gate_up.bias else set()) | ({"reduce"} if self.down.communicator else set())
        )
        shape = {"hidden": gate_up.inputs, "intermediate": down.inputs}
        return OpSpec(self.op, dtype_name(gate_up.dtype), format, shape, frozenset(flags))

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate_up(x)))  # type: ignore[no-any-return]


def make_mlp(
    w: Weights, names: Sequence[str], hidden_size: int, inner: int, activation: str, *, bias: bool
) -> FeedForward | GatedMLP:
    """The block of two linear layers, or of three where the first one is a gate, by their names in the checkpoint."""
    match names:
        case gate, up, down:
            return GatedMLP(w, hidden_size, inner, activation, bias=bias, names=(gate, up, down))
        case first, second:
            return FeedForward(w, (first, second), (hidden_size, inner, hidden_size), activation, bias=bias)
    raise AssertionError(names)


def _gate_and_up(gate: str, up: str, size: int, share: tuple[int, int]) -> list[Part]:
    first, last = share
    if gate != up:
        return [Part(name, size, first, last) for name in (gate, up)]
    return [Part(gate, 2 * size, first, last), Part(gate, 2 * size, size + first, size + last)]
