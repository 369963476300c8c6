"""Nemotron 3 and 4, Minitron (NVIDIA 2024): norms stored less 1, squared ReLU."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import LayerNorm1P


class Nemotron(Gpt):
    form = Form(make_norm=LayerNorm1P, mlp_names=("up_proj", "down_proj"))
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        fraction = keys.take("rope_percent", float, keys.take("rope_percentage", float, 0.5))
        c = GptConfig.read(keys, activation="relu2", tied=False)
        attention, mlp = keys.take("attention_bias", bool, False), keys.take("mlp_bias", bool, False)
        form = replace(self.form, qkv_bias=attention, out_bias=attention, mlp_bias=mlp)
        return replace(c, rope=read_rotary(keys, c.head_dim, fraction=fraction)), form
