"""Falcon (Almazrouei et al. 2023): 7b, 40b and the RefinedWeb models with ALiBi."""

from __future__ import annotations

from dataclasses import replace

import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.gpt.alibi import alibi_slopes
from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys


class Falcon(Gpt):
    form = Form(
        place="transformer", embed="word_embeddings", layers="h", norm="ln_f", attn="self_attention",
        projections=Projections(names=("query_key_value",), blocks=None, out="dense"),
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    )  # fmt: skip
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        grouped = keys.take("new_decoder_architecture", bool, keys.json.get("model_type") == "RefinedWeb")
        shared = keys.take("multi_query", bool, True) and not grouped
        keys.agree("apply_residual_connection_post_layernorm", False)
        c = GptConfig.read(keys, activation="gelu", kv_heads=1 if shared else 0)
        if not grouped:
            c = replace(c, kv_heads=1 if shared else c.heads)
        bias = keys.take("bias", bool, False)
        form = replace(self.form, qkv_bias=bias, out_bias=bias, mlp_bias=bias, **_read_residual(keys, grouped))
        if keys.take("alibi", bool, False):
            keys.maybe("rope_parameters", object)
            return replace(c, slopes=_scaled_slopes(c)), form
        return replace(c, rope=read_rotary(keys, c.head_dim)), form


def _read_residual(keys: Keys, grouped: bool) -> dict[str, str | None]:
    """How a layer is put together, by the names in ``Form``."""
    parallel = keys.take("parallel_attn", bool, True)
    norms = keys.take("num_ln_in_parallel_attn", int, 2 if grouped else 1)
    if not parallel and not grouped:
        return {"residual": "sequential"}
    if not parallel or norms not in (1, 2) or (norms == 2 and not grouped):
        raise CheckpointError(
            f"config.json: parallel_attn={parallel} with num_ln_in_parallel_attn={norms} and "
            f"new_decoder_architecture={grouped} is none of the forms that Falcon was published in"
        )
    if norms == 2:
        return {"residual": "parallel", "before_attn": "ln_attn", "before_mlp": "ln_mlp"}
    return {"residual": "parallel", "before_mlp": None}


def _scaled_slopes(c: GptConfig) -> tuple[float, ...]:
    """Rounded to bfloat16, and scaled with the products they are added to, as the published code has them."""
    rounded = torch.tensor(alibi_slopes(c.heads)).bfloat16().tolist()
    return tuple(slope * c.head_dim**-0.5 for slope in rounded)
