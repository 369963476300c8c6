"""Qwen3, dense: no biases, but a norm on every head of q and k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.nn.attention import Attention
from lsv.nn.config import DecoderConfig
from lsv.nn.decoder import Decoder, DecoderLayer
from lsv.nn.keys import Keys
from lsv.nn.mlp import GatedMLP
from lsv.nn.norm import RMSNorm
from lsv.nn.rope import Rope
from lsv.weights.place import Weights


def qwen3_attention(w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> Attention:
    """The attention of the dense and the sparse models."""
    bias = c.attention_bias
    return Attention(w / "self_attn", c, layer, rope, qk_norm=True, qkv_bias=bias, out_bias=bias)


class Qwen3Layer(DecoderLayer):
    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> None:
        super().__init__(
            RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps),
            qwen3_attention(w, c, layer, rope),
            RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps),
            GatedMLP(w / "mlp", c.hidden_size, c.intermediate_size, c.activation),
        )


class Qwen3(Decoder):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c = DecoderConfig.read(keys, head_dim=128)
        keys.finish("Qwen3")
        rope = Rope(w, c.rope, max_len)
        super().__init__(w, c, (Qwen3Layer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
