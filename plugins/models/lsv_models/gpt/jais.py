"""Jais (Sengupta et al. 2023): GPT-2 with ALiBi, gated MLPs, and the scales of maximal update parametrisation."""

from __future__ import annotations

from dataclasses import replace

from lsv_models.gpt.gpt2 import GPT2, read_scales
from lsv_runtime.nn.gpt.alibi import alibi_slopes
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys


class Jais(Gpt):
    form = replace(GPT2, positions=None, mlp_names=("c_fc2", "c_fc", "c_proj"), transposed=True)
    prefixes = form.prefixes
    ignores = (*Gpt.ignores, r"relative_pe")

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        for name, own in (("position_embedding_type", "alibi"), ("activation_function", "swiglu")):
            keys.agree(name, own)
        keys.agree("alibi_scaling", None)
        c = replace(GptConfig.read(keys), activation="silu")
        by_size = keys.take("scale_qk_dot_by_d", bool, keys.take("mup_scale_qk_dot_by_d", bool, False))
        embed = keys.take("embeddings_scale", float, keys.take("mup_embeddings_scale", float, 1.0))
        alpha, width = keys.take("mup_output_alpha", float, 1.0), keys.take("mup_width_scale", float, 1.0)
        logits = keys.take("width_scale", float, alpha * width)
        scales = read_scales(keys, c, power=1.0 if by_size else 0.5)
        return (
            replace(c, slopes=alibi_slopes(c.heads), scales=scales, embed_scale=embed, logit_scale=logits),
            self.form,
        )
