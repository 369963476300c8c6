"""GPT-2 (Radford et al. 2019): learned positions, and linear weights stored as [inputs, outputs]."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys

GPT2 = Form(
    place="transformer", embed="wte", positions="wpe", layers="h", norm="ln_f", before_attn="ln_1", before_mlp="ln_2",
    attn="attn", projections=Projections(names=("c_attn",), out="c_proj"), mlp_names=("c_fc", "c_proj"),
)  # fmt: skip


class Gpt2(Gpt):
    form = replace(GPT2, transposed=True)
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys)
        return replace(c, scales=read_scales(keys, c)), self.form


def read_scales(keys: Keys, c: GptConfig, power: float = 0.5) -> tuple[float, ...]:
    """Of attention, by layer: 1 / head_dim ** ``power``, where config.json does not ask for others."""
    keys.maybe("reorder_and_upcast_attn", object)
    keys.agree("add_cross_attention", False)
    plain = c.head_dim**-power if keys.take("scale_attn_weights", bool, True) else 1.0
    by_layer = keys.take("scale_attn_by_inverse_layer_idx", bool, False)
    return tuple(plain / (layer + 1 if by_layer else 1) for layer in range(c.layers))
