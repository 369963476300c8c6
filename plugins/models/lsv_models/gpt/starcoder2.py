"""StarCoder 2 (Lozhkov et al. 2024): biases, windows, and few keys and values."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys


class Starcoder2(Gpt):
    form = Form(mlp_names=("c_fc", "c_proj"))
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys, activation="gelu_pytorch_tanh")
        for name in ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
            keys.maybe(name, object)
        keys.agree("scale_attn_weights", True)
        keys.agree("mlp_type", "default")
        keys.agree("norm_type", "layer_norm")
        bias = keys.take("use_bias", bool, True)
        windows = (keys.maybe("sliding_window", int),) * c.layers
        form = replace(self.form, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
        return replace(c, rope=read_rotary(keys, c.head_dim), windows=windows), form
