"""Phi-3.5-MoE: experts chosen by a sparse mixer, biased layer norms and head, LongRoPE with magnitudes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_models.llama import LlamaLayer
from lsv_models.rms.phi3 import with_magnitude
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.gpt.model import AdaptedHead
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.routers import SparseMixer
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights


class PhiMoeLayer(LlamaLayer):
    norm = LayerNorm  # type: ignore[assignment]  # made and called alike


class PhiMoe(SparseDecoder):
    layer = PhiMoeLayer
    mlp = "block_sparse_moe"
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": 1e6}
    common = {"windows": True}

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, with_magnitude(config, max_len), max_len)
        if self.biased:
            self.head: Any = AdaptedHead(self.head, (w / "lm_head").take("bias", (self.vocab_size,)), 1.0)

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        return Experts(
            layers=range(c.layers),
            count=keys.count("num_local_experts", 16),
            top=keys.count("num_experts_per_tok", 2),
            size=c.intermediate_size,
            normalise=False,
        )

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        self.biased = keys.take("lm_head_bias", bool, False)
        self.jitter = keys.take("router_jitter_noise", float, 0.01)
        keys.maybe("input_jitter_noise", float)

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int, experts: Experts) -> Bindable:
        router = SparseMixer(w / "gate", c.hidden_size, experts.count, experts.top, jitter=self.jitter)
        return MoE(
            w, c.hidden_size, experts.size, c.activation,
            experts=experts.count, top=experts.top, router=router, names=("w1", "w3", "w2"),
        )  # fmt: skip
