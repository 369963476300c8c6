"""Phi-3, Phi-3.5 and Phi-4: Llama with q, k and v in one tensor, and gate and up in another."""

from __future__ import annotations

from functools import partial

from lsv.nn.attention import Heads
from lsv.nn.config import DecoderConfig
from lsv.nn.decoder import DenseDecoder
from lsv.nn.keys import Keys
from lsv_models.llama import LlamaLayer


class Phi3Layer(LlamaLayer):
    fused = partial(Heads.stacked, name="qkv_proj")
    mlp_names = ("gate_up_proj", "gate_up_proj", "down_proj")
    qkv_bias = out_bias = mlp_bias = False


class Phi3(DenseDecoder):
    layer = Phi3Layer
    defaults = {"norm_eps": 1e-5}

    def read(self, keys: Keys) -> DecoderConfig:
        keys.agree("full_attn_mod", 1)
        keys.agree("interpolate_factor", 1)
        return super().read(keys)
