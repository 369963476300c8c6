"""InternLM 1, 2 and 3: Llama, of which InternLM 2 has tensor names of its own, and q, k and v in one by KV head."""

from __future__ import annotations

from functools import partial

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.attention import Heads
from lsv_runtime.nn.decoder import DenseDecoder


class InternLMLayer(LlamaLayer):
    mlp_bias = False


class InternLM(DenseDecoder):
    layer = InternLMLayer
    keys = {"attention_bias": "bias"}


class InternLM2Layer(InternLMLayer):
    fused = partial(Heads.grouped, name="wqkv")


class InternLM2(InternLM):
    layer = InternLM2Layer
    prefixes = (
        ("model.layers.*.attention_norm", "model.layers.*.input_layernorm"),
        ("model.layers.*.ffn_norm", "model.layers.*.post_attention_layernorm"),
        ("model.layers.*.attention.wo", "model.layers.*.self_attn.o_proj"),
        ("model.layers.*.attention", "model.layers.*.self_attn"),
        ("model.layers.*.feed_forward.w1", "model.layers.*.mlp.gate_proj"),
        ("model.layers.*.feed_forward.w2", "model.layers.*.mlp.down_proj"),
        ("model.layers.*.feed_forward.w3", "model.layers.*.mlp.up_proj"),
        ("model.tok_embeddings", "model.embed_tokens"),
        ("output", "lm_head"),
    )


class InternLM3(DenseDecoder):
    layer = LlamaLayer
    keys = {"attention_bias": "qkv_bias", "attention_out_bias": "bias", "mlp_bias": "bias"}
    defaults = {"head_dim": 128, "norm_eps": 1e-5}
