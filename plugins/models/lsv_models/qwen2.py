"""Qwen2 and Qwen2.5: Llama with biases on q, k and v."""

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


class Qwen2Layer(DecoderLayer):
    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> None:
        super().__init__(
            RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps),
            Attention(w / "self_attn", c, layer, rope, qkv_bias=True),
            RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps),
            GatedMLP(w / "mlp", c.hidden_size, c.intermediate_size, c.activation),
        )


class Qwen2(Decoder):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c = DecoderConfig.read(keys)
        keys.finish("Qwen2")
        rope = Rope(w, c.rope, max_len)
        super().__init__(w, c, (Qwen2Layer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
