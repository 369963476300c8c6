"""Falcon-H1: Mamba 2 and attention side by side in every layer, with multipliers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.recurrent.hybrid import HybridLayer, read_mamba2
from lsv_models.recurrent.keys import ignore
from lsv_models.recurrent.mamba2_mixer import Mamba2Mixer, Mamba2Sizes
from lsv_models.recurrent.stack import Names, Scaled, Stack
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.mlp import find_activation
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True)
class Factors:
    """What the parts of a layer are multiplied by."""

    attention_in: float
    attention_out: float
    ssm_in: float
    ssm_out: float
    key: float
    ssm: tuple[float, ...]
    """Of gate, x, b, c and time steps."""
    mlp: tuple[float, ...]
    """Of the MLP's gate and of its result."""

    @classmethod
    def read(cls, keys: Keys) -> Factors:
        one = {
            name: keys.take(f"{name}_multiplier", float, 1.0)
            for name in ("attention_in", "attention_out", "ssm_in", "ssm_out", "key")
        }
        return cls(**one, ssm=_read_factors(keys, "ssm_multipliers", 5), mlp=_read_factors(keys, "mlp_multipliers", 2))


def _read_factors(keys: Keys, name: str, count: int) -> tuple[float, ...]:
    given = keys.take(name, list, [1.0] * count)
    if len(given) != count or not all(type(one) in (int, float) for one in given):
        raise CheckpointError(f"config.json: {name} must be {count} numbers, got {given!r:.100}")
    return tuple(map(float, given))


class ScaledMixer(Mamba2Mixer):
    """Mamba 2 whose projections are multiplied, and whose output is gated without a norm unless ``normed``."""

    def __init__(
        self, w: Weights, c: Mamba2Sizes, index: int, factors: Factors, *, normed: bool, out_bias: bool
    ) -> None:
        super().__init__(w, c, index, normed=normed, out_bias=out_bias)
        self.factors, (inner, shared, _) = factors, self.inner
        self.columns = (inner, inner, shared, shared, c.heads)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        states, factors = self.cache.of(step), self.factors
        parts = self.project(x * factors.ssm_in).split(self.columns, dim=-1)
        gate, x, b, c, dt = (part * factor for part, factor in zip(parts, factors.ssm, strict=True))
        x, b, c = self.conv(torch.cat((x, b, c), dim=-1), states).split(self.inner, dim=-1)
        y = self.scan(x, dt, b, c, states)
        y = (y * functional.silu(gate.float())).to(gate.dtype) if self.norm is None else self.norm(y, gate)
        return self.out(y) * factors.ssm_out  # type: ignore[no-any-return]


class Both(nn.Module):
    """The sum of a recurrent layer and of attention: x [T, hidden] -> [T, hidden]."""

    def __init__(self, mamba: ScaledMixer, attention: Attention, factors: Factors) -> None:
        super().__init__()
        self.mamba, self.attention, self.factors = mamba, attention, factors

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        attended = self.attention(x * self.factors.attention_in, step)
        return self.mamba(x, step) + attended * self.factors.attention_out  # type: ignore[no-any-return]


class ScaledMLP(nn.Module):
    """A gated MLP with factors on its gate and on its result."""

    def __init__(self, w: Weights, c: DecoderConfig, factors: tuple[float, ...]) -> None:
        super().__init__()
        self.gate_up = Column.even(w, ("gate_proj", "up_proj"), c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        reads = w.shard.split(c.intermediate_size, "intermediate features")
        self.down = Row(w, "down_proj", c.intermediate_size, c.hidden_size, reads=reads, bias=c.mlp_bias)
        self.activate, (self.gate, self.result) = find_activation(c.activation), factors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(up * self.activate(gate * self.gate)) * self.result  # type: ignore[no-any-return]


class FalconH1(Stack):
    names = ((r"\.feed_forward\.", ".mlp."), (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."))

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        ignore(keys, "layer_types", "layers_block_type", "attn_layer_indices", "mamba_norm_before_gate")
        c, factors = DecoderConfig.read(keys, norm_eps=1e-5), Factors.read(keys)
        c = dataclasses.replace(c, windows=(None,) * 2 * c.layers)  # a layer keeps two things
        inner = keys.maybe("mamba_d_ssm", int)
        sizes = read_mamba2(keys, c.hidden_size, c.norm_eps, c.activation, inner=inner)
        normed, out_bias = keys.take("mamba_rms_norm", bool, False), keys.take("projectors_bias", bool, False)
        if normed and config.get("mamba_norm_before_gate", True):
            raise CheckpointError("config.json: mamba_norm_before_gate is not implemented")
        embedding, logits = (keys.take(f"{name}_multiplier", float, 1.0) for name in ("embedding", "lm_head"))
        keys.finish("FalconH1")
        rope = Rope(w, c.rope, max_len)

        def layer(i: int) -> HybridLayer:
            place, biased = w / "model" / "layers" / i, c.attention_bias
            attention = Attention(place / "self_attn", c, 2 * i, rope, qkv_bias=biased, out_bias=biased)
            attention.layer = dataclasses.replace(attention.layer, scale=attention.layer.scale * factors.key)
            mamba = ScaledMixer(
                place.replicated() / "mamba", sizes, 2 * i + 1, factors, normed=normed, out_bias=out_bias
            )
            return HybridLayer(place, c, Both(mamba, attention, factors), ScaledMLP(place / "mlp", c, factors.mlp))

        super().__init__(
            w, (c.vocab_size, c.hidden_size), map(layer, range(c.layers)), eps=c.norm_eps, tied=c.tied,
            names=Names(norm="model.final_layernorm"),
        )  # fmt: skip
        self.embed, self.head = Scaled(self.embed, embedding), Scaled(self.head, logits)
