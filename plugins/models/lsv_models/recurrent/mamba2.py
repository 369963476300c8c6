"""Mamba 2, and Codestral Mamba: recurrent layers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_models.recurrent.keys import TRAINING, WITHOUT_ATTENTION, ignore, read_limits
from lsv_models.recurrent.mamba2_mixer import Mamba2Mixer, Mamba2Sizes
from lsv_models.recurrent.stack import Names, RecurrentLayer, Stack
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.weights.place import Weights

NAMES = Names("backbone.embeddings", "backbone.norm_f")


class Mamba2(Stack):
    prefixes = (
        ("model.backbone.embedding", "backbone.embeddings"),
        ("model.backbone", "backbone"),
        ("model.lm_head", "lm_head"),
        ("backbone.embedding", "backbone.embeddings"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        hidden, heads, groups = keys.count("hidden_size"), keys.count("num_heads", 128), keys.count("n_groups", 8)
        eps = keys.take("layer_norm_epsilon", float, 1e-5)
        sizes = Mamba2Sizes(
            hidden=hidden,
            heads=heads,
            head_dim=keys.count("head_dim", 64),
            state=keys.count("state_size", 128),
            groups=groups,
            conv=keys.count("conv_kernel", 4),
            limits=read_limits(keys),
            activation=keys.take("hidden_act", str, "silu"),
            bias=keys.take("use_bias", bool, False),
            conv_bias=keys.take("use_conv_bias", bool, True),
            eps=eps,
            norm_groups=groups,
        )
        keys.agree("expand", heads * sizes.head_dim / hidden)
        wide, layers = keys.take("residual_in_fp32", bool, True), keys.layers("num_hidden_layers")
        vocabulary, tied = keys.count("vocab_size"), keys.take("tie_word_embeddings", bool, False)
        ignore(keys, *TRAINING, "chunk_size", "time_step_rank", "norm_before_gate", "rms_norm", *WITHOUT_ATTENTION)
        keys.finish("Mamba2")
        place = w / "backbone" / "layers"
        blocks = (
            RecurrentLayer(
                RMSNorm(place / i / "norm", hidden, eps), Mamba2Mixer(place / i / "mixer", sizes, i), wide=wide
            )
            for i in range(layers)
        )
        super().__init__(w, (vocabulary, hidden), blocks, eps=eps, tied=tied, names=NAMES, wide=wide)
