"""OLMoE: experts in every layer, and a norm over all heads of q and of k."""

from __future__ import annotations

from lsv_models.llama import LlamaLayer
from lsv_models.rms.blocks import WideNormAttention
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys


class OlmoeLayer(LlamaLayer):
    attention = WideNormAttention
    qk_norm = True


class Olmoe(SparseDecoder):
    layer = OlmoeLayer
    defaults = {"num_experts": 64, "num_experts_per_tok": 8, "rms_norm_eps": 1e-5}

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        keys.agree("clip_qkv", None)
        return Experts.read_qwen(keys, c.layers, size=c.intermediate_size)
