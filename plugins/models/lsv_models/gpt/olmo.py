"""OLMo 1 (Groeneveld et al. 2024): Llama whose norms have no weights, with bounds on q, k and v."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lsv_models.gpt.stablelm import GATED
from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import LayerNorm


class Olmo(Gpt):
    form = replace(GATED, make_norm=partial(LayerNorm, affine=False))
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys, activation="silu", tied=False)
        bias, clip = keys.take("attention_bias", bool, False), keys.maybe("clip_qkv", float)
        form = replace(self.form, qkv_bias=bias, out_bias=bias)
        return replace(c, rope=read_rotary(keys, c.head_dim), clip=clip), form
