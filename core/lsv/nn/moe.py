"""Mixture of experts: each token goes through the few experts its router chooses."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from lsv.errors import CheckpointError
from lsv.nn.mlp import GatedMLP
from lsv.offers import OpSpec
from lsv.ops import Bindable
from lsv.weights.place import Weights
from lsv.weights.quantizer import LinearLayer, PlainLinear


class Router(nn.Module):
    """Softmax over all experts, then the ``top`` most likely: x [T, hidden] -> weights and int64 ids, both [T, top].

    ``normalise`` rescales the chosen weights to sum to one. Probabilities are computed in float32. A router is small
    and sensitive, so it is never quantised.
    """

    def __init__(self, w: Weights, hidden_size: int, experts: int, top: int, *, normalise: bool) -> None:
        super().__init__()
        layer = LinearLayer(w.name, "column", hidden_size, (experts,), False, w.dtype)
        self.logits = PlainLinear(layer, w.take("weight", (experts, hidden_size)), None)
        self.top, self.normalise = top, normalise

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = torch.softmax(self.logits(x), dim=-1, dtype=torch.float32)
        weights, experts = chances.topk(self.top, dim=-1)
        if self.normalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights.to(x.dtype), experts


MOST_EXPERTS = 10_000
"""Far more than any model has; each is built before the first weight is looked for."""


class MoE(Bindable):
    """x [T, hidden] -> [T, hidden]. Each expert is split over the ranks like a plain MLP; sums run in expert order.

    ``names`` are gate, up and down of one expert, whose weights are at ``experts.<number>``. How many tokens an expert
    gets depends on values, so no device can capture the reference.
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
        normalise: bool,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        super().__init__()
        if not 1 <= top <= experts <= MOST_EXPERTS:
            raise CheckpointError(
                f"config.json: each token goes to {top} of {experts} experts, which must be 1 to {MOST_EXPERTS}"
            )
        self.communicator = w.communicator
        self.router = Router(w / "gate", hidden_size, experts, top, normalise=normalise)
        self.experts = nn.ModuleList(
            GatedMLP(w / "experts" / number, hidden_size, intermediate_size, activation, names=names, reduce=False)
            for number in range(experts)
        )

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
            y.index_add_(0, rows, self.experts[number](x[rows]) * weights[rows, places, None])
        return y if self.communicator is None else self.communicator.all_reduce(y)
