"""Encoder-decoders some of whose feed-forward blocks are routed experts: Switch Transformers and NLLB's largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.seq2seq.layers import Side
from lsv_models.seq2seq.mbart import M2M100
from lsv_models.seq2seq.t5 import T5
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.moe import PlainExpert, PlainRouted
from lsv_runtime.nn.routers import ExactRouter, Router, ScoredRouter
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

_NLLB = (
    (r"\.cross_attention", ".encoder_attn"),
    (r"\.ff_layer_norm\.", ".final_layer_norm."),
    (r"\.ffn\.", "."),
    (r"\.experts\.expert_(\d+)\.", r".experts.\1."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """The keys that both families have."""

    count: int
    capacity: int
    """Tokens that an expert takes."""
    bias: bool
    """Whether the router has one."""

    @classmethod
    def read(cls, keys: Keys) -> Sparse:
        keys.agree("router_dtype", "float32")
        keys.skip("router_ignore_padding_tokens", "add_router_probs")
        return cls(
            count=keys.count("num_experts", 8),
            capacity=keys.count("expert_capacity", 64),
            bias=keys.take("router_bias", bool, False),
        )

    def make(self, w: Weights, c: Side, router: Router, names: tuple[str, str], *, bias: bool) -> PlainRouted:
        size, inner = c.hidden_size, c.intermediate_size
        return PlainRouted(
            w, size, inner, c.activation, experts=self.count, top=router.top, router=router,
            expert=lambda place: PlainExpert(place, size, inner, c.activation, names=names, bias=bias),
        )  # fmt: skip


class CappedRouter(ExactRouter):
    """One that reads whole texts. The first ``capacity`` tokens that an expert is the likeliest of go through it; what
    others add is nothing.
    """

    def __init__(self, *given: Any, capacity: int, **more: Any) -> None:
        super().__init__(*given, **more)
        self.capacity = capacity

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = super().choose(logits)
        taken = torch.zeros_like(logits, dtype=torch.int64).scatter_(1, experts, 1).cumsum(0)
        return weights.masked_fill(taken.gather(1, experts) > self.capacity, 0.0), experts


class Switch(T5):
    """Switch Transformers (Fedus et al. 2021): each token goes through one expert.

    Experts of the encoder take so many tokens of a text. Those of the decoder take all: generation gives them a token
    at a time, and what is true of a token then is true of it in a chunk of a prompt.
    """

    def scales_logits(self, keys: Keys) -> bool:
        """Always: models whose embeddings are not tied have three tables, of which one is read here."""
        keys.agree("tie_word_embeddings", True)
        return True

    def read_more(self, keys: Keys) -> None:
        self.sparse = Sparse.read(keys)
        self.steps = {side: self._read_step(keys, side) for side in ("encoder", "decoder")}

    def make_experts(self, w: Weights, c: Side, side: str, layer: int) -> nn.Module | None:
        step, sparse = self.steps[side], self.sparse
        if step < 1 or (step > 1 and layer % step != 1):
            return None
        given = (w / "router" / "classifier", c.hidden_size, sparse.count, 1)
        router = (
            CappedRouter(*given, normalise=False, bias=sparse.bias, capacity=sparse.capacity)
            if side == "encoder"
            else ExactRouter(*given, normalise=False, bias=sparse.bias)
        )
        return sparse.make(w, c, router, ("wi", "wo"), bias=False)

    def _read_step(self, keys: Keys, side: str) -> int:
        """Every so many layers of a side one is sparse."""
        layers = keys.layers("num_layers")
        layers = layers if side == "encoder" else keys.layers("num_decoder_layers", layers)
        sparse = keys.take(f"num_sparse_{side}_layers", int, 3)
        return keys.take(f"{side}_sparse_step", int, layers // sparse if sparse > 0 else layers)


class NllbMoE(M2M100):
    """NLLB's largest model (NLLB Team 2022): each token goes through two experts.

    An expert has room for all tokens of a text, as the published checkpoint says; where it hasn't, which tokens are
    left out would depend on those of other requests.
    """

    def read_more(self, keys: Keys) -> None:
        super().read_more(keys)
        self.sparse = Sparse.read(keys)
        self.steps = {side: keys.take(f"{side}_sparse_step", int, 4) for side in ("encoder", "decoder")}
        self.kept = 1.0 - keys.take("moe_token_dropout", float, 0.2)
        keys.agree("router_bias", False)
        keys.agree("second_expert_policy", "all")
        keys.skip("batch_prioritized_routing", "normalize_router_prob_before_dropping")  # where nothing is dropped
        if keys.take("moe_eval_capacity_token_fraction", float, 1.0) < 1.0:
            raise CheckpointError(
                "config.json: moe_eval_capacity_token_fraction must be 1.0: with less room, which tokens an expert "
                "leaves out depends on those of other requests"
            )

    def make_experts(self, w: Weights, c: Side, side: str, layer: int) -> nn.Module | None:
        step, sparse = self.steps[side], self.sparse
        if step < 1 or (layer + 1) % step:
            return None
        place = w / "router" / "classifier"
        router = ScoredRouter(place, c.hidden_size, sparse.count, 2, normalise=True, scores="softmax", scale=self.kept)
        return sparse.make(w, c, router, ("fc1", "fc2"), bias=True)

    def rename(self, name: str) -> str:
        return super().rename(substitute(name, _NLLB))
