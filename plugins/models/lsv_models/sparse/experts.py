"""The sparse part of a config.json, and the feed-forward block it asks for in a layer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE, SharedMoE
from lsv_runtime.nn.routers import ExactRouter, Router, ScoredRouter, Scores
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Which layers have experts, what these are, and how they are chosen."""

    layers: Collection[int]
    """The sparse layers; the others have a plain MLP."""
    count: int
    top: int
    size: int
    """Inner features of an expert."""
    normalise: bool
    scores: Scores | None = None
    """None for a plain softmax router; with scores come those from ``correction`` to ``scale``."""
    exact: bool = False
    """Whether a softmax router computes its logits in float32."""
    gate: str = "gate"
    """Where the router is."""
    correction: str | None = None
    correction_rows: int | None = None
    groups: int = 1
    chosen_groups: int = 1
    scale: float = 1.0
    shared: int = 0
    """Inner features of the expert that all tokens go through; 0 where there is none."""
    shared_name: str = "shared_experts"
    shared_gate: str | None = None
    """Where the gate of the shared expert is, if it has one."""
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """Gate, up and down of a routed expert and of a plain MLP."""

    @classmethod
    def read_deepseek(cls, keys: Keys, layers: int, normalise: bool, scale: float) -> Experts:
        """DeepSeek's keys; ``scale`` is the family's for a file that has none."""
        size, shared = keys.count("moe_intermediate_size"), keys.maybe("n_shared_experts", int) or 0
        first, step = keys.take("first_k_dense_replace", int, 0), keys.count("moe_layer_freq", 1)
        keys.agree("ep_size", 1)
        return cls(
            layers=[layer for layer in range(first, layers) if layer % step == 0],
            count=keys.count("n_routed_experts"),
            top=keys.count("num_experts_per_tok", 8),
            size=size,
            normalise=normalise,
            groups=keys.count("n_group", 1),
            chosen_groups=keys.count("topk_group", 1),
            scale=keys.take("routed_scaling_factor", float, scale),
            shared=size * shared,
        )

    @classmethod
    def read_qwen(cls, keys: Keys, layers: int, size: int | None = None) -> Experts:
        """Qwen's keys; ``size`` is that of experts in families that have no key of its own for it."""
        dense, step = keys.maybe("mlp_only_layers", list) or [], keys.count("decoder_sparse_step", 1)
        count = keys.count("num_experts")
        return cls(
            layers=[layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0],
            count=count,
            top=keys.count("num_experts_per_tok"),
            size=size or keys.count("moe_intermediate_size"),
            normalise=keys.take("norm_topk_prob", bool, False),
        )


def make_mlp(w: Weights, c: DecoderConfig, layer: int, experts: Experts) -> MoE | SharedMoE | GatedMLP:
    """The block of a layer whose weights are at ``w``."""
    if layer not in experts.layers:
        return GatedMLP(w, c.hidden_size, c.intermediate_size, c.activation, names=experts.names)
    routed = MoE(
        w, c.hidden_size, experts.size, c.activation,
        experts=experts.count, top=experts.top, names=experts.names, router=make_router(w / experts.gate, c, experts),
    )  # fmt: skip
    if not experts.shared:
        return routed
    shared = GatedMLP(w / experts.shared_name, c.hidden_size, experts.shared, c.activation)
    return SharedMoE(routed, shared, w / experts.shared_gate if experts.shared_gate else None)


def make_router(w: Weights, c: DecoderConfig, experts: Experts) -> Router:
    if experts.scores is None:
        kind = ExactRouter if experts.exact else Router
        return kind(w, c.hidden_size, experts.count, experts.top, normalise=experts.normalise)
    return ScoredRouter(
        w, c.hidden_size, experts.count, experts.top, normalise=experts.normalise, scores=experts.scores,
        correction=experts.correction, correction_rows=experts.correction_rows, groups=experts.groups,
        chosen_groups=experts.chosen_groups, scale=experts.scale,
    )  # fmt: skip
