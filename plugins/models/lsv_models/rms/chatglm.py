"""ChatGLM 2 and 3, GLM-4 (2024) and CodeGeeX 4 as first published: what became ``Glm``, under names of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.attention import Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import PairRope


class ChatGLMLayer(LlamaLayer):
    fused = partial(Heads.stacked, name="query_key_value")
    mlp_names = ("dense_h_to_4h", "dense_h_to_4h", "down_proj")


class ChatGLM(DenseDecoder):
    layer = ChatGLMLayer
    rope = PairRope
    has_head = True
    keys = {
        "num_hidden_layers": "num_layers", "num_key_value_heads": "multi_query_group_num",
        "intermediate_size": "ffn_hidden_size", "head_dim": "kv_channels", "rms_norm_eps": "layernorm_epsilon",
        "vocab_size": "padded_vocab_size", "max_position_embeddings": "seq_length",
        "attention_out_bias": "add_bias_linear", "mlp_bias": "add_bias_linear",
    }  # fmt: skip
    defaults = {"norm_eps": 1e-5, "rotary_fraction": 0.5}
    prefixes = (
        ("transformer.encoder.layers.*.self_attention.dense", "model.layers.*.self_attn.o_proj"),
        ("transformer.encoder.layers.*.self_attention", "model.layers.*.self_attn"),
        ("transformer.encoder.layers.*.mlp.dense_4h_to_h", "model.layers.*.mlp.down_proj"),
        ("transformer.encoder.layers", "model.layers"),
        ("transformer.encoder.final_layernorm", "model.norm"),
        ("transformer.embedding.word_embeddings", "model.embed_tokens"),
        ("transformer.output_layer", "lm_head"),
    )
    ignores = (*DenseDecoder.ignores, r"rotary_pos_emb\.inv_freq$")

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        for key in ("rmsnorm", "original_rope", "post_layer_norm", "multi_query_attention"):
            keys.agree(key, True)
        keys.skip("vocab_size", "apply_query_key_layer_scaling", "attention_softmax_in_fp32")
        theta = c.rope.theta * keys.take("rope_ratio", float, 1.0)
        rope = replace(c.rope, theta=theta)
        bias = c.attention_out_bias or keys.take("add_qkv_bias", bool, False)
        return replace(c, rope=rope, local_rope=rope, attention_bias=bias)
