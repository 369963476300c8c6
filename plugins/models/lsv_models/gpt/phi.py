"""Phi-1.5 and Phi-2 (Microsoft 2023): one norm for attention and MLP side by side, biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.attention import one_norm
from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys


class Phi(Gpt):
    form = Form(
        norm="final_layernorm", head_bias=True, residual="parallel", before_mlp=None,
        projections=Projections(out="dense"),
    )  # fmt: skip
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys, tied=False)
        normed = keys.take("qk_layernorm", bool, False)
        form = replace(self.form, make_head_norm=one_norm if normed else None)
        return replace(c, rope=read_rotary(keys, c.head_dim, fraction=0.5)), form
