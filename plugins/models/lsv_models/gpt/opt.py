"""OPT (Zhang et al. 2022): learned positions from row 2 on; its 350m norms sums and has a narrower embedding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Part, Weights


class Opt(Gpt):
    form = Form(
        place="model.decoder", positions="embed_positions", first_position=2, norm="final_layer_norm",
        before_attn="self_attn_layer_norm", before_mlp="final_layer_norm", projections=Projections(out="out_proj"),
        mlp="",
    )  # fmt: skip
    prefixes = (("decoder", "model.decoder"), *form.prefixes)

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        for name in ("activation_dropout", "do_sample", "layerdrop"):
            keys.maybe(name, object)
        c = GptConfig.read(keys, activation="relu")
        before, bias = keys.take("do_layer_norm_before", bool, True), keys.take("enable_bias", bool, True)
        normed = before and not keys.take("_remove_final_layer_norm", bool, False)
        affine = keys.take("layer_norm_elementwise_affine", bool, True)
        width = keys.count("word_embed_proj_dim", c.hidden_size)
        form = replace(
            self.form,
            residual="sequential" if before else "normed",
            norm=self.form.norm if normed else None,
            make_norm=partial(LayerNorm, affine=affine),
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=bias,
        )
        return replace(c, embed_size=None if width == c.hidden_size else width), form

    def build(self, w: Weights, c: GptConfig, form: Form, max_len: int) -> None:
        super().build(w, c, form, max_len)
        self.widen: Column | None = None
        if c.embed_size is not None:
            place, (narrow, wide) = w / form.place, (c.embed_size, c.hidden_size)
            self.widen = Column(place, [Part("project_in", wide, 0, wide)], narrow)
            self.norm = nn.Sequential(self.norm, Column(place, [Part("project_out", narrow, 0, narrow)], wide))

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        if self.widen is None or self.places is None:
            return super().embed(ids, step)
        return self.widen(self.tokens(ids, step)) + self.places(step.positions[0])  # type: ignore[no-any-return]
