"""BLOOM (BigScience 2022): ALiBi, and a norm after the embedding."""

from __future__ import annotations

from dataclasses import replace

from lsv_runtime.nn.gpt.alibi import alibi_slopes
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys

_BESIDE = (
    "attention_softmax_in_fp32",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "offset_alibi",
    "slow_but_exact",
)


class Bloom(Gpt):
    form = Form(
        place="transformer", embed="word_embeddings", embed_norm="word_embeddings_layernorm", layers="h", norm="ln_f",
        attn="self_attention", projections=Projections(names=("query_key_value",), blocks=None, out="dense"),
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    )  # fmt: skip
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        for name in (*_BESIDE, "seq_length", "skip_bias_add", "skip_bias_add_qkv", "hidden_dropout"):
            keys.maybe(name, object)
        keys.agree("apply_residual_connection_post_layernorm", False)
        c = GptConfig.read(keys)
        return replace(c, slopes=alibi_slopes(c.heads)), self.form
