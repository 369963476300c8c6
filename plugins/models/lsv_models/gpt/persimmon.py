"""Persimmon (Adept 2023): norms of queries and keys, squared ReLU, half of each head rotated."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.attention import one_norm
from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys


class Persimmon(Gpt):
    form = Form(
        norm="final_layernorm", projections=Projections(names=("query_key_value",), blocks=None, out="dense"),
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    )  # fmt: skip
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys, activation="relu2", tied=False)
        normed = keys.take("qk_layernorm", bool, True)
        form = replace(self.form, make_head_norm=one_norm if normed else None)
        return replace(c, rope=read_rotary(keys, c.head_dim, theta=25000.0, fraction=0.5)), form
