"""Granite 4 hybrids: Mamba 2, and attention in a few layers, with multipliers; dense ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv.errors import CheckpointError
from lsv.nn.attention import Attention
from lsv.nn.config import DecoderConfig
from lsv.nn.keys import Keys
from lsv.nn.linear import Column, Row
from lsv.nn.mlp import GatedActivation
from lsv.nn.rope import Rope
from lsv.weights.place import Weights
from lsv_models.recurrent.bamba import KINDS
from lsv_models.recurrent.hybrid import HybridLayer, read_kinds, read_mamba2
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.mamba2_mixer import Mamba2Mixer
from lsv_models.recurrent.stack import Scaled, Stack


class FusedMLP(nn.Module):
    """A gated MLP whose gate and up projection are stored as one: x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, hidden: int, inner: int, activation: str) -> None:
        super().__init__()
        self.gate_up = Column.even(w, ("input_linear",), hidden, 2 * inner)
        self.act = GatedActivation(activation, w.dtype)
        self.down = Row(w, "output_linear", inner, hidden, reads=(0, inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate_up(x)))  # type: ignore[no-any-return]


class GraniteHybrid(Stack):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        if config.get("num_local_experts", 8):
            raise CheckpointError(
                "config.json: num_local_experts asks for experts stored as one tensor, which are not implemented for "
                "Granite hybrids; dense ones have num_local_experts=0"
            )
        keys = Keys(config)
        ignore(
            keys,
            "layer_types",
            "layers_block_type",
            "num_local_experts",
            "num_experts_per_tok",
            "normalization_function",
        )
        ignore(keys, "init_method", "intermediate_size")
        c = DecoderConfig.read(keys)
        sizes = read_mamba2(keys, c.hidden_size, c.norm_eps, c.activation)
        inner, factors = keys.count("shared_intermediate_size", 1024), ("embedding", "residual", "attention")
        embedding, residual, attention = (keys.take(f"{name}_multiplier", float, 1.0) for name in factors)
        logits, positions = keys.take("logits_scaling", float, 1.0), keys.maybe("position_embedding_type", str)
        keys.finish("GraniteHybrid")
        kinds = read_kinds(config, ("layers_block_type", "layer_types"), c.layers, KINDS) or ["recurrent"] * c.layers
        rope = Rope(w, c.rope, max_len) if positions == "rope" else None

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mlp = FusedMLP(place / "shared_mlp", c.hidden_size, inner, c.activation)
            if kinds[i] != "attention":
                return HybridLayer(place, c, Mamba2Mixer(place / "mamba", sizes, i), mlp, scale=residual)
            biased = c.attention_bias
            mixer = Attention(place / "self_attn", c, i, rope, qkv_bias=biased, out_bias=biased)
            mixer.layer = dataclasses.replace(mixer.layer, scale=attention)
            return HybridLayer(place, c, mixer, mlp, scale=residual)

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
        )  # fmt: skip
        self.embed, self.head = Scaled(self.embed, embedding), Scaled(self.head, 1 / logits)
