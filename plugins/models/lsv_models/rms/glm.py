"""GLM-4 (2024) and GLM-4-0414: the first half of a head's features rotate, as neighbouring pairs."""

from __future__ import annotations

from lsv_models.llama import LlamaLayer
from lsv_models.rms.blocks import SandwichLayer
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.rope import PairRope


class GlmLayer(LlamaLayer):
    mlp_names = ("gate_up_proj", "gate_up_proj", "down_proj")
    out_bias = mlp_bias = False


class Glm(DenseDecoder):
    layer = GlmLayer
    rope = PairRope
    defaults = {"head_dim": 128, "norm_eps": 1.5625e-7, "attention_bias": True, "rotary_fraction": 0.5}


class Glm4Layer(SandwichLayer):
    norms = {
        "before_attn": "input_layernorm",
        "after_attn": "post_self_attn_layernorm",
        "before_mlp": "post_attention_layernorm",
        "after_mlp": "post_mlp_layernorm",
    }
    mlp_names = GlmLayer.mlp_names
    out_bias = mlp_bias = False


class Glm4(Glm):
    layer = Glm4Layer
