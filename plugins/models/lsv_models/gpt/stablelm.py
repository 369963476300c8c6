"""StableLM (Stability AI 2023) and Orion (OrionStar 2024): Llama with layer norms."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.attention import listed_norms
from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys

GATED = Form(
    qkv_bias=False, out_bias=False, mlp_names=("gate_proj", "up_proj", "down_proj"), mlp_bias=False,
)  # fmt: skip


class StableLm(Gpt):
    form = GATED
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys, activation="silu", tied=False)
        form = replace(self.form, qkv_bias=keys.take("use_qkv_bias", bool, False))
        if keys.take("qk_layernorm", bool, False):
            form = replace(form, make_head_norm=listed_norms)
        if keys.take("use_parallel_residual", bool, False):
            form = replace(form, residual="parallel", before_mlp=None)
        keys.agree("rotary_scaling_factor", 1.0)
        fraction = keys.take("rope_pct", float, 0.25)
        return replace(c, rope=read_rotary(keys, c.head_dim, fraction=fraction)), form


class Orion(Gpt):
    form = GATED
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        eps = keys.take("rms_norm_eps", float, 1e-5)
        keys.agree("attention_bias", False)
        c = GptConfig.read(keys, activation="silu", tied=False, eps=eps)
        return replace(c, rope=read_rotary(keys, c.head_dim)), self.form
