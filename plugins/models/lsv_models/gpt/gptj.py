"""GPT-J and CodeGen: one norm for attention and MLP side by side, and rotary embeddings of neighbouring features."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.config import GptConfig, read_rotary, rotate_first
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import PairRope


class GptJ(Gpt):
    form = Form(
        place="transformer", embed="wte", layers="h", norm="ln_f", head_bias=True, residual="parallel",
        before_attn="ln_1", before_mlp=None, attn="attn", projections=Projections(out="out_proj"), qkv_bias=False,
        out_bias=False, mlp_names=("fc_in", "fc_out"),
    )  # fmt: skip
    prefixes = form.prefixes
    rotation = PairRope

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        for name in ("scale_attn_weights", "rotary"):
            keys.agree(name, True)
        c = GptConfig.read(keys, tied=False)
        keys.pass_over("rope_theta", "rotary_emb_base", "rope_scaling", "rope_parameters")
        rope = read_rotary(keys, c.head_dim)
        return replace(c, rope=rotate_first(rope, keys.maybe("rotary_dim", int) or c.head_dim)), self.form


class CodeGen(GptJ):
    """Its fused projection was cut for four devices, values before keys."""

    form = replace(GptJ.form, projections=Projections(names=("qkv_proj",), blocks=4, order="qvk", out="out_proj"))
    prefixes = form.prefixes
