"""MiniMax-Text-01: lightning attention, softmax attention in a few layers, and experts in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv_models.recurrent.delta.qwen3_next import KINDS
from lsv_models.recurrent.hybrid import read_kinds
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import MIXTRAL, Stack
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.mlp import find_activation
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.recurrent.lightning import Lightning
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_NORM_EPS = 1e-6
"""Of the norm in recurrent layers, whatever the model's own."""


class LightningMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]. q, k and v are activated, and ordered by heads; the output is normed and gated."""

    def __init__(self, w: Weights, c: DecoderConfig, index: int) -> None:
        super().__init__()
        inner = c.heads * c.head_dim
        self.heads, self.activate = c.heads, find_activation(c.activation)
        self.qkv = Column.even(w, ("qkv_proj",), c.hidden_size, 3 * inner)
        self.gate = Column.even(w, ("output_gate",), c.hidden_size, inner)
        self.scan = Lightning(_rates(c.heads, index, c.layers), c.head_dim)
        self.cache = StateCache(w, index, (self.scan.part,))
        self.norm = RMSNorm(w / "norm", inner, _NORM_EPS)
        self.out = Row(w, "out_proj", inner, c.hidden_size, reads=(0, inner))

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        mixed = self.activate(self.qkv(x)).unflatten(-1, (self.heads, 3, -1))
        q, k, v = (part.flatten(1) for part in mixed.unbind(2))
        y = self.norm(self.scan(q, k, v, self.cache.of(step)).to(x.dtype))
        return self.out(torch.sigmoid(self.gate(x)) * y)  # type: ignore[no-any-return]


def _rates(heads: int, layer: int, layers: int) -> list[float]:
    """How fast each head of a layer forgets: ALiBi's slopes, less in later layers."""
    factor = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return [2 ** (-8 * (head + 1) / heads) * factor for head in range(heads)]


class WeighedLayer(nn.Module):
    """Mixer and experts, each added to what it is given, with factors on both: x [T, hidden] -> [T, hidden]."""

    def __init__(
        self, w: Weights, c: DecoderConfig, mixer: nn.Module, mlp: nn.Module, factors: tuple[float, float, float, float]
    ) -> None:
        super().__init__()
        self.before_mixer = RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps)
        self.before_mlp = RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps)
        self.mixer, self.mlp, self.factors = mixer, mlp, factors

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        kept, mixed, through, added = self.factors
        x = self.before_mixer(x)
        x = self.before_mlp(x * kept + self.mixer(x, step) * mixed)
        return x * through + self.mlp(x) * added  # type: ignore[no-any-return]


class MiniMax(Stack):
    names = MIXTRAL
    ignores = (*Stack.ignores, r"\.self_attn\.(slope_rate|(query|key|diagonal)_decay)$")

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        ignore(keys, "layer_types", "block_size")
        keys.agree("sliding_window", None)
        c = DecoderConfig.read(keys, norm_eps=1e-5, rope_theta=1e6)
        experts, top = keys.count("num_local_experts", 8), keys.count("num_experts_per_tok", 2)
        factors = {
            kind: (keys.take(f"{name}_alpha_factor", float, 1.0), keys.take(f"{name}_beta_factor", float, 1.0))
            for kind, name in (("attention", "full_attn"), ("recurrent", "linear_attn"), ("mlp", "mlp"))
        }
        keys.finish("MiniMax")
        kinds = read_kinds(config, ("layer_types",), c.layers, KINDS) or [
            "attention" if layer % 2 == 0 else "recurrent" for layer in range(c.layers)
        ]
        rope = Rope(w, c.rope, max_len)

        def layer(i: int) -> WeighedLayer:
            place = w / "model" / "layers" / i
            mixer = (
                Attention(place / "self_attn", c, i, rope)
                if kinds[i] == "attention"
                else LightningMixer(place.replicated() / "self_attn", c, i)
            )
            mlp = MoE(place / "mlp", c.hidden_size, c.intermediate_size, c.activation, experts=experts, top=top)
            return WeighedLayer(place, c, mixer, mlp, (*factors[kinds[i]], *factors["mlp"]))

        layers = map(layer, range(c.layers))
        super().__init__(w, (c.vocab_size, c.hidden_size), layers, eps=c.norm_eps, tied=c.tied)
