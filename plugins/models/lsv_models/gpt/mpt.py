"""MPT (MosaicML 2023): ALiBi, and no biases anywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.gpt.alibi import alibi_slopes
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import LayerNorm


class Mpt(Gpt):
    form = Form(
        place="transformer", embed="wte", layers="blocks", norm="norm_f", make_norm=partial(LayerNorm, bias=False),
        before_attn="norm_1", before_mlp="norm_2", attn="attn",
        projections=Projections(names=("Wqkv",), out="out_proj"), qkv_bias=False, out_bias=False, mlp="ffn",
        mlp_names=("up_proj", "down_proj"), mlp_bias=False,
    )  # fmt: skip
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        for name, own in (("no_bias", True), ("embedding_fraction", 1.0), ("emb_init_std", None)):
            keys.agree(name, own)
        norm = keys.take("norm_type", str, "low_precision_layernorm")
        if norm not in ("low_precision_layernorm", "layernorm"):
            raise CheckpointError(
                f"config.json: norm_type must be layernorm or low_precision_layernorm, got {norm:.100}"
            )
        for name in ("learned_pos_emb", "max_seq_len", "init_config", "init_device"):
            keys.maybe(name, object)  # ALiBi goes without learned positions whatever the key says
        c = GptConfig.read(keys, activation="gelu")
        c = replace(c, intermediate_size=keys.count("expansion_ratio", 4) * c.hidden_size)
        attention = Keys(keys.take("attn_config", dict, {}))
        for name in ("attn_impl", "attn_pdrop"):
            attention.maybe(name, object)
        for name, value in (("attn_type", "multihead_attention"), ("alibi", True), ("prefix_lm", False)):
            attention.agree(name, value)
        for name in ("qk_ln", "attn_uses_sequence_id"):
            attention.agree(name, False)
        scale = attention.maybe("softmax_scale", float)
        slopes = alibi_slopes(c.heads, float(attention.count("alibi_bias_max", 8)))
        clip = attention.maybe("clip_qkv", float) or None
        attention.finish("attn_config of Mpt")
        scales = None if scale is None else (scale,) * c.layers
        return replace(c, slopes=slopes, scales=scales, clip=clip, logit_scale=_read_logit_scale(keys, c)), self.form


def _read_logit_scale(keys: Keys, c: GptConfig) -> float:
    written = keys.maybe("logit_scale", object)
    if written is None or (isinstance(written, float) and written > 0):
        return written or 1.0
    if written == "inv_sqrt_d_model":
        return float(c.hidden_size**-0.5)
    raise CheckpointError(f"config.json: logit_scale must be a number or inv_sqrt_d_model, got {written!r:.100}")
