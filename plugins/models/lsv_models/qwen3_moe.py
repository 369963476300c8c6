"""Qwen3, sparse: a mixture of experts in all layers except those that the config keeps dense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsv_models.qwen3 import Qwen3Layer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True)
class Experts:
    """The sparse part of the config. Every ``step``-th layer is sparse unless ``dense`` lists it."""

    count: int
    top: int
    size: int
    normalise: bool
    step: int
    dense: tuple[int, ...]

    @classmethod
    def read(cls, keys: Keys) -> Experts:
        # older files say num_experts, newer ones num_local_experts
        other = keys.take("num_local_experts", int, 128)
        return cls(
            count=keys.take("num_experts", int, other),
            top=keys.count("num_experts_per_tok", 8),
            size=keys.count("moe_intermediate_size", 768),
            normalise=keys.take("norm_topk_prob", bool, False),
            step=keys.count("decoder_sparse_step", 1),
            dense=tuple(keys.take("mlp_only_layers", list, [])),
        )

    def sparse(self, layer: int) -> bool:
        return layer not in self.dense and self.count > 0 and (layer + 1) % self.step == 0


def make_mlp(w: Weights, c: DecoderConfig, layer: int, experts: Experts) -> MoE | GatedMLP:
    if not experts.sparse(layer):
        return GatedMLP(w, c.hidden_size, c.intermediate_size, c.activation)
    return MoE(
        w, c.hidden_size, experts.size, c.activation,
        experts=experts.count, top=experts.top, normalise=experts.normalise,
    )  # fmt: skip


class Qwen3MoeLayer(Qwen3Layer):
    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, experts: Experts) -> None:
        super().__init__(w, c, layer, rope, make_mlp(w / "mlp", c, layer, experts))


class Qwen3Moe(Decoder):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        # unlike other models of the line it has windows in all layers or in none
        keys = Keys({key: value for key, value in config.items() if key != "max_window_layers"})
        c, experts = DecoderConfig.read(keys, first_window=0), Experts.read(keys)
        keys.agree("use_qk_norm", Qwen3MoeLayer.qk_norm)
        keys.finish("Qwen3Moe")
        rope = Rope(w, c.rope, max_len)
        layers = (Qwen3MoeLayer(w / "model" / "layers" / i, c, i, rope, experts) for i in range(c.layers))
        super().__init__(w, c, layers)
