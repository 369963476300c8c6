"""Experts that are MLPs without a gate, perhaps in a narrower space, beside one for all tokens (Nemotron 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from lsv_models.recurrent.keys import ignore
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.moe import PlainExpert, PlainRouted
from lsv_runtime.nn.routers import ScoredRouter
from lsv_runtime.weights.place import Weights

_NAMES = ("up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainExperts:
    """The sparse part of a config.json."""

    count: int
    top: int
    size: int
    """Inner features of an expert."""
    shared: int
    """Those of the one that all tokens go through."""
    narrow: int | None
    """The width of what experts are given, where it is not the model's."""
    groups: int
    chosen_groups: int
    normalise: bool
    scale: float
    activation: str

    @classmethod
    def read(cls, keys: Keys, activation: str) -> PlainExperts:
        ignore(keys, "num_local_experts", "n_shared_experts", "moe_shared_expert_overlap")
        return cls(
            count=keys.count("n_routed_experts", 8),
            top=keys.count("num_experts_per_tok", 2),
            size=keys.count("moe_intermediate_size", 7688),
            shared=keys.count("moe_shared_expert_intermediate_size", 7688),
            narrow=keys.maybe("moe_latent_size", int),
            groups=keys.count("n_group", 1),
            chosen_groups=keys.count("topk_group", 1),
            normalise=keys.take("norm_topk_prob", bool, True),
            scale=keys.take("routed_scaling_factor", float, 1.0),
            activation=activation,
        )


class PlainMoE(nn.Module):
    """Routed experts and one for all tokens: x [T, hidden] -> [T, hidden]. The router sees tokens in full width."""

    def __init__(self, w: Weights, c: DecoderConfig, experts: PlainExperts) -> None:
        super().__init__()
        hidden, width = c.hidden_size, experts.narrow or c.hidden_size
        router = ScoredRouter(
            w / "gate", hidden, experts.count, experts.top, normalise=experts.normalise, scores="sigmoid",
            correction="e_score_correction_bias", groups=experts.groups, chosen_groups=experts.chosen_groups,
            scale=experts.scale,
        )  # fmt: skip
        self.routed = PlainRouted(
            w, width, experts.size, experts.activation, experts=experts.count, top=experts.top, router=router,
            expert=lambda place: PlainExpert(place, width, experts.size, experts.activation),
        )  # fmt: skip
        sizes = (hidden, experts.shared, hidden)
        self.shared = FeedForward(w / "shared_experts", _NAMES, sizes, experts.activation, bias=c.mlp_bias)
        self.narrow = self.widen = None
        if experts.narrow is not None:
            alone = w.replicated()
            self.narrow = Column.even(alone, ("fc1_latent_proj",), hidden, width, bias=c.mlp_bias)
            self.widen = Column.even(alone, ("fc2_latent_proj",), width, hidden, bias=c.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.narrow is None or self.widen is None:
            return self.routed(x) + self.shared(x)  # type: ignore[no-any-return]
        y = self.routed.mix(self.narrow(x), *self.routed.router(x))
        return self.widen(y) + self.shared(x)  # type: ignore[no-any-return]
