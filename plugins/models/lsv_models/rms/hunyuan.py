"""Hunyuan v1, dense: Llama with a norm on every head of q and k, after they are rotated."""

from __future__ import annotations

from lsv_models.llama import LlamaLayer
from lsv_models.rms.blocks import LateNormAttention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys


class HunyuanLayer(LlamaLayer):
    attention = LateNormAttention
    qk_norm = True


class Hunyuan(DenseDecoder):
    layer = HunyuanLayer
    defaults = {"norm_eps": 1e-5}

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        keys.agree("attention_head_dim", c.head_dim)
        keys.agree("use_rotary_pos_emb", True)
        keys.agree("num_experts", 1)
        # of its own training code, and of the family's models with experts
        keys.skip("cla_share_factor", "norm_type", "pool_type", "org_vocab_size", "mask_init_id")
        keys.skip("moe_topk", "moe_intermediate_size", "moe_layer_num_skipped", "num_shared_expert")
        return c
