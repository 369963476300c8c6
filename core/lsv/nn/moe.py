"""Mixture of experts: each token goes through the few experts its router chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from lsv.nn.mlp import GatedMLP
from lsv.nn.routers import Router
from lsv.offers import OpSpec
from lsv.ops import Bindable
from lsv.weights.place import Weights
from lsv.weights.quantizer import LinearLayer, PlainLinear

MakeExpert = Callable[[Weights], nn.Module]


class MoE(Bindable):
    """x [T, hidden] -> [T, hidden]. Each expert is split over the ranks like a plain MLP; sums run in expert order.

    ``names`` are gate, up and down of one expert, whose weights are at ``experts.<number>``; checkpoints that stack
    them are unfolded (``lsv.weights.stacks``). ``router`` and ``expert`` take the place of a softmax router at ``gate``
    and of gated MLPs. How many tokens an expert gets depends on values, so no device can capture the reference.
    """

    op: ClassVar[str] = "moe"
    capturable: ClassVar[bool] = False

    def __init__(
        self,
        w: Weights,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        experts: int,
        top: int,
        normalise: bool = True,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        router: Router | None = None,
        expert: MakeExpert | None = None,
    ) -> None:
        super().__init__()

        def make(place: Weights) -> nn.Module:
            return GatedMLP(place, hidden_size, intermediate_size, activation, names=names, reduce=False)

        self.communicator = w.communicator
        self.router = router or Router(w / "gate", hidden_size, experts, top, normalise=normalise)
        self.experts = nn.ModuleList((expert or make)(w / "experts" / number) for number in range(experts))

    def spec(self) -> OpSpec:
        """With the flags that both linear layers of an expert have, and their groups."""
        expert: Any = self.experts[0]
        inner, linears = expert.spec(), [part.linear.spec() for part in (expert.gate_up, expert.down)]
        groups = {linear.shape.get("group", 0) for linear in linears}
        shape = {**inner.shape, "experts": len(self.experts), "top": self.router.top, "group": max(groups)}
        shared = linears[0].flags & linears[1].flags if len(groups) == 1 else frozenset()
        return OpSpec(self.op, inner.dtype, inner.format, shape, inner.flags | shared)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = self.router(x)
        y = torch.zeros_like(x)
        for number in experts.unique().tolist():
            rows, places = (experts == number).nonzero(as_tuple=True)
            y.index_add_(0, rows, self.compute(number, x[rows], weights[rows, places, None]))
        return y if self.communicator is None else self.communicator.all_reduce(y)

    def compute(self, number: int, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """What an expert adds to its tokens: x [R, hidden] and weights [R, 1] -> [R, hidden]."""
        return self.experts[number](x) * weights  # type: ignore[no-any-return]


class WeighedInputMoE(MoE):
    """One whose weights are on what experts are given, not on what they answer (Llama 4)."""

    op: ClassVar[str] = "moe.weighed_input"

    def compute(self, number: int, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.experts[number](x * weights)  # type: ignore[no-any-return]


class SharedMoE(Bindable):
    """Routed experts, and one that all tokens go through: x [T, hidden] -> [T, hidden].

    ``gate`` is the place of a linear layer whose sigmoid the shared expert's answer is multiplied by (Qwen2-MoE).
    """

    op: ClassVar[str] = "moe.shared"
    capturable: ClassVar[bool] = False

    def __init__(self, routed: MoE, shared: GatedMLP, gate: Weights | None = None) -> None:
        super().__init__()
        self.routed, self.shared = routed, shared
        self.gate = _make_gate(gate, shared) if gate is not None else None

    def spec(self) -> OpSpec:
        routed, shared = self.routed.spec(), self.shared.spec()
        flags = routed.flags | {f"shared.{flag}" for flag in shared.flags} | ({"gated"} if self.gate else set())
        return OpSpec(self.op, routed.dtype, f"{routed.format}+{shared.format}", dict(routed.shape), frozenset(flags))

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        shared = self.shared(x)
        if self.gate is not None:
            shared = torch.sigmoid(self.gate(x)) * shared
        return self.routed(x) + shared  # type: ignore[no-any-return]


def _make_gate(w: Weights, shared: GatedMLP) -> PlainLinear:
    """Small and sensitive as a router, so never quantised."""
    size = shared.gate_up.linear.layer.inputs
    layer = LinearLayer(w.name, "column", size, (1,), False, w.dtype)
    return PlainLinear(layer, w.take("weight", (1, size)), None)
