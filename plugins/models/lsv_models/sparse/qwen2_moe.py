"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with routed experts and a gated one that all tokens go through."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lsv_models.qwen2 import Qwen2Layer
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.place import Weights


class Qwen2Moe(SparseDecoder):
    layer = Qwen2Layer
    defaults = {
        "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "use_sliding_window": False,
    }  # fmt: skip
    common = {"windows": True}

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, {"layer_types": _make_kinds(config), **config}, max_len)

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        keys.agree("qkv_bias", True)
        shared = keys.count("shared_expert_intermediate_size", 5632)
        experts = Experts.read_qwen(keys, c.layers)
        return dataclasses.replace(
            experts, shared=shared, shared_name="shared_expert", shared_gate="shared_expert_gate"
        )


def _make_kinds(config: Mapping[str, Any]) -> list[str]:
    """The kinds of layers where config.json has none: of the first ones every other has a window."""
    keys = Keys(config)
    layers, last = keys.layers("num_hidden_layers"), keys.take("max_window_layers", int, 28)
    return ["full_attention" if layer % 2 or layer >= last else "sliding_attention" for layer in range(layers)]
