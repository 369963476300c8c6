"""Mamba and Falcon Mamba: recurrent layers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from lsv_models.recurrent.keys import TRAINING, WITHOUT_ATTENTION, ignore
from lsv_models.recurrent.mamba_mixer import MambaMixer, MambaSizes
from lsv_models.recurrent.stack import Names, RecurrentLayer, Stack
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.weights.place import Weights

NAMES = Names("backbone.embeddings", "backbone.norm_f")


class Mamba(Stack):
    prefixes = (("backbone.embedding", "backbone.embeddings"),)
    norms: ClassVar[Literal["none", "plain"]] = "none"

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        hidden, eps = keys.count("hidden_size"), keys.take("layer_norm_epsilon", float, 1e-5)
        inner = keys.count("intermediate_size", keys.count("expand", 2) * hidden)
        sizes = MambaSizes(
            hidden=hidden,
            inner=inner,
            state=keys.count("state_size", 16),
            rank=read_rank(keys, "time_step_rank", hidden),
            conv=keys.count("conv_kernel", 4),
            activation=keys.take("hidden_act", str, "silu"),
            bias=keys.take("use_bias", bool, False),
            conv_bias=keys.take("use_conv_bias", bool, True),
            eps=keys.take("mixer_rms_eps", float, 1e-6),
            norms=self.norms,
        )
        wide, layers = keys.take("residual_in_fp32", bool, True), keys.layers("num_hidden_layers")
        vocabulary, tied = keys.count("vocab_size"), keys.take("tie_word_embeddings", bool, True)
        ignore(keys, *TRAINING, *WITHOUT_ATTENTION, "time_step_init_scheme", "d_model", "d_inner", "n_layer", "ssm_cfg")
        ignore(keys, "rms_norm", "fused_add_norm", "use_mambapy", "use_falcon_mambapy", "use_associative_scan")
        keys.finish(type(self).__name__)
        place = w / "backbone" / "layers"
        blocks = (
            RecurrentLayer(
                RMSNorm(place / i / "norm", hidden, eps), MambaMixer(place / i / "mixer", sizes, i), wide=wide
            )
            for i in range(layers)
        )
        super().__init__(w, (vocabulary, hidden), blocks, eps=eps, tied=tied, names=NAMES, wide=wide)


class FalconMamba(Mamba):
    """Mamba whose time steps, b and c are normalised; checkpoints may hold weights of these norms, which are ones."""

    norms = "plain"
    ignores = (*Stack.ignores, r"\.mixer\.(dt|b|c)_layernorm\.weight$")


def read_rank(keys: Keys, name: str, hidden: int) -> int:
    """The rank of the projection that makes time steps; "auto" is a sixteenth of the width."""
    if keys.json.get(name) in (None, "auto"):
        keys.maybe(name, str)
        return -(-hidden // 16)
    return keys.count(name)
