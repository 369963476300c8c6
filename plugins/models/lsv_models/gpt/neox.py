"""GPT-NeoX (Black et al. 2022), Pythia, Dolly 2, StableLM alpha: attention and MLP side by side, a norm for each."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys


class GptNeoX(Gpt):
    form = Form(
        place="gpt_neox", embed="embed_in", norm="final_layer_norm", head="embed_out", attn="attention",
        projections=Projections(names=("query_key_value",), blocks=None, out="dense"),
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    )  # fmt: skip
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys, activation="gelu", tied=False)
        bias = keys.take("attention_bias", bool, True)
        residual = "parallel" if keys.take("use_parallel_residual", bool, True) else "sequential"
        form = replace(self.form, residual=residual, qkv_bias=bias, out_bias=bias)
        return replace(c, rope=read_rotary(keys, c.head_dim, fraction=0.25)), form
