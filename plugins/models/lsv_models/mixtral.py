"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights

_NAMES = ("w1", "w3", "w2")  # gate, up, down


class MixtralLayer(LlamaLayer):
    qkv_bias = out_bias = False

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, experts: int, top: int) -> None:
        moe = MoE(
            w / "block_sparse_moe", c.hidden_size, c.intermediate_size, c.activation,
            experts=experts, top=top, normalise=True, names=_NAMES,
        )  # fmt: skip
        super().__init__(w, c, layer, rope, moe)


class Mixtral(Decoder):
    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c = DecoderConfig.read(keys, rope_theta=1e6, norm_eps=1e-5, windows=True)
        experts, top = keys.count("num_local_experts", 8), keys.count("num_experts_per_tok", 2)
        keys.finish("Mixtral")
        rope = Rope(w, c.rope, max_len)
        layers = (MixtralLayer(w / "model" / "layers" / i, c, i, rope, experts, top) for i in range(c.layers))
        super().__init__(w, c, layers)
