"""RecurrentGemma (Griffin): real-gated linear recurrent units, and attention with a window in every third layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.recurrent.hybrid import HybridLayer, with_defaults
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.stack import Names, Scaled, Stack
from lsv_models.rms.blocks import OffsetRMSNorm
from lsv_runtime import products
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.embed import ScaledHead
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.mlp import GatedMLP, find_activation
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.recurrent.diagonal import Diagonal
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.recurrent.weights import take_float
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

KINDS = {
    "recurrent": "recurrent", "linear_attention": "recurrent",
    "attention": "attention", "sliding_attention": "attention",
}  # fmt: skip
NORMS = {"before_mixer": "temporal_pre_norm", "before_mlp": "channel_pre_norm"}
_FALL = 8.0
"""What logarithms of decays are multiplied by."""


class LinearUnit(nn.Module):
    """Each channel keeps a share of what it has and adds a share of what it is given: x [T, width] -> [T, width].

    Gates are products with one matrix for each head. What the first token of a request is given is taken as a whole.
    """

    def __init__(self, w: Weights, heads: int, width: int) -> None:
        super().__init__()
        dim = width // heads
        self.weights, self.biases = (
            nn.ParameterList(w.take(f"{name}_gate_{kind}", shape) for name in ("input", "recurrent"))
            for kind, shape in (("weight", (heads, dim, dim)), ("bias", (heads, dim)))
        )
        self.rate = take_float(w, "recurrent_param", width)
        self.heads, self.scan = heads, Diagonal(width)

    def forward(self, x: torch.Tensor, step: Step, cache: StateCache) -> torch.Tensor:
        heads = x.unflatten(-1, (self.heads, -1))
        given, kept = (
            torch.sigmoid(products.einsum("thi,hij->thj", heads, weight) + bias).flatten(1)
            for weight, bias in zip(self.weights, self.biases, strict=True)
        )
        logs = -_FALL * kept.float() * functional.softplus(self.rate)
        first = (step.positions[0] == 0)[:, None]
        share = torch.where(first, 1.0, torch.sqrt(1 - (2 * logs).exp()))
        return self.scan((x * given).float() * share, logs, cache.of(step)).to(x.dtype)  # type: ignore[no-any-return]


class GriffinMixer(nn.Module):
    """A convolution and a recurrent unit beside a gate: x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, c: DecoderConfig, width: int, seen: int, index: int) -> None:
        super().__init__()
        self.project = Column.even(w, ("linear_x", "linear_y"), c.hidden_size, width, bias=True)
        self.conv = CausalConv(w / "conv_1d", width, seen, activation=None, bias=True)
        self.unit = LinearUnit(w / "rg_lru", c.heads, width)
        self.cache = StateCache(w, index, (self.conv.part, self.unit.scan.part))
        self.out = Row(w, "linear_out", width, c.hidden_size, reads=(0, width), bias=True)
        self.activate = find_activation(c.activation)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x, gate = self.project(x).chunk(2, dim=-1)
        x = self.unit(self.conv(x, self.cache.of(step)), step, self.cache)
        return self.out(x * self.activate(gate))  # type: ignore[no-any-return]


class RecurrentGemma(Stack):
    make_norm = OffsetRMSNorm

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(
            with_defaults(config, tie_word_embeddings=True),
            {"hidden_act": "hidden_activation"},
        )
        ignore(keys, "layers_block_type", "layer_types", "block_types", "w_init_variance_scale")
        ignore(keys, "final_w_init_variance_scale", "sliding_window")
        keys.agree("embeddings_scale_by_sqrt_dim", True)
        c = DecoderConfig.read(keys, activation="gelu_pytorch_tanh", rotary_fraction=0.5)
        window, cap = keys.count("attention_window_size", 2048), keys.take("logits_soft_cap", float, 30.0)
        c = dataclasses.replace(c, windows=(window,) * c.layers, intermediate_size=c.intermediate_size // 2)
        width, seen = keys.count("lru_width", c.hidden_size), keys.count("conv1d_width", 4)
        keys.finish("RecurrentGemma")
        if width % c.heads:
            raise CheckpointError(f"config.json: lru_width={width} is not a multiple of num_attention_heads={c.heads}")
        kinds = _read_kinds(config, c.layers)
        rope = Rope(w, c.rope, max_len)

        def layer(i: int) -> HybridLayer:
            place = w / "model" / "layers" / i
            mixer = (
                Attention(place / "temporal_block", c, i, rope, qkv_bias=c.attention_bias, out_bias=True)
                if kinds[i] == "attention"
                else GriffinMixer(place.replicated() / "temporal_block", c, width, seen, i)
            )
            mlp = GatedMLP(place / "mlp_block", c.hidden_size, c.intermediate_size, c.activation, bias=True)
            return HybridLayer(place, c, mixer, mlp, norm=OffsetRMSNorm, norms=NORMS)

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
            names=Names(norm="model.final_norm"),
        )  # fmt: skip
        # rounded, as the model was trained
        scale = float(torch.tensor(c.hidden_size**0.5, dtype=torch.bfloat16))
        self.embed, self.head = Scaled(self.embed, scale), ScaledHead(self.head, 1.0, cap)


def _read_kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    """The kind of each layer, by a list that is repeated. Raises ``CheckpointError`` for other kinds."""
    given = config.get("layers_block_type") or config.get("block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(given, list) or not all(kind in KINDS for kind in given):
        raise CheckpointError(f"config.json: block_types must list layers of {', '.join(KINDS)}, got {given!r:.200}")
    return [KINDS[given[layer % len(given)]] for layer in range(layers)]
