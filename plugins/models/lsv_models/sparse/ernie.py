"""ERNIE 4.5 MoE: softmax scores with a learned correction, shared experts, neighbouring features rotated."""

from __future__ import annotations

from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import PairRope


class Ernie45Moe(SparseDecoder):
    rope = PairRope
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True}

    def rename(self, name: str) -> str:
        return super().rename(name).replace(".mlp.moe_statics.", ".mlp.gate.moe_statics.")

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        keys.agree("use_bias", False)
        keys.take("moe_norm_min", float, 1e-12)
        size, step = keys.count("moe_intermediate_size", 1536), keys.count("moe_layer_interval", 1)
        first, last = keys.take("moe_layer_start_index", int, 1), keys.take("moe_layer_end_index", int, -1)
        last = c.layers - 1 if last == -1 else last
        return Experts(
            layers=[layer for layer in range(first, last + 1) if (layer + 1) % step == 0],
            count=keys.count("moe_num_experts", 64),
            top=keys.count("moe_k", 6),
            size=size,
            normalise=True,
            scores="softmax",
            correction="moe_statics.e_score_correction_bias",
            correction_rows=1,
            shared=size * keys.take("moe_num_shared_experts", int, 2),
        )
