"""Zamba 2: Mamba 2, and blocks of attention that layers share in turns, each with adapters of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.recurrent.hybrid import read_kinds, with_defaults
from lsv_models.recurrent.keys import TRAINING, ignore
from lsv_models.recurrent.mamba2_mixer import Mamba2Mixer, Mamba2Sizes
from lsv_models.recurrent.zamba.shared import AdaptedMLP, Block, SharingStack, Use, ZambaLayer
from lsv_models.recurrent.zamba.zamba import KINDS
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights

_NAMES = ("gate_up_proj", "gate_up_proj", "down_proj")
_UNUSED = (
    "use_mamba_kernels", "num_logits_to_keep", "layers_block_type", "layer_types", "hybrid_layer_ids", "kv_channels",
    "num_query_groups", "chunk_size", "use_mem_eff_path", "use_conv_bias", "mamba_headdim",
)  # fmt: skip
_NORM_EPS = 1e-5
"""Of the gated norms, whatever the model's own."""


class Zamba2(SharingStack):
    shared = "shared_transformer"

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(
            with_defaults(config, tie_word_embeddings=True, hidden_act="gelu"), {"head_dim": "attention_head_dim"}
        )
        least = keys.take("time_step_min", float, 0.001)
        ignore(keys, *TRAINING, *_UNUSED)
        hidden = keys.count("hidden_size")
        c = DecoderConfig.read(keys, norm_eps=1e-5, head_dim=2 * hidden // keys.count("num_attention_heads"))
        c = dataclasses.replace(c, windows=(None,) * 2 * c.layers)  # a layer keeps two things
        keys.agree("attention_hidden_size", 2 * hidden)
        keys.agree("tie_word_embeddings", True)  # that of blocks is meant, too
        keys.agree("use_long_context", False)
        heads, groups = keys.count("n_mamba_heads", 8), keys.count("mamba_ngroups", 1)
        bias = keys.take("add_bias_linear", bool, False)
        sizes = Mamba2Sizes(
            hidden=hidden,
            heads=heads,
            head_dim=keys.count("mamba_expand", 2) * hidden // heads,
            state=keys.count("mamba_d_state", 64),
            groups=groups,
            conv=keys.count("mamba_d_conv", 4),
            limits=(least, math.inf),
            activation="silu",
            bias=bias,
            conv_bias=True,
            eps=_NORM_EPS,
            norm_groups=groups,
        )
        blocks, rank = keys.count("num_mem_blocks", 1), keys.count("adapter_rank", 128)
        adapted = keys.take("use_shared_attention_adapter", bool, False)
        rotated = keys.take("use_mem_rope", bool, False)
        keys.finish("Zamba2")
        kinds = read_kinds(config, ("layers_block_type",), c.layers, KINDS)
        if kinds is None:
            raise CheckpointError("config.json: Zamba 2 needs a list of its layers in layers_block_type")
        rope = Rope(w, c.rope, max_len) if rotated else None
        places = [w / "model" / "layers" / i for i in range(c.layers)]
        hybrids = [i for i, kind in enumerate(kinds) if kind == "hybrid"]
        owners = hybrids[:blocks]
        shared = [Block(places[i] / self.shared, c, rope, names=_NAMES, bias=bias) for i in owners]

        def use(turn: int, place: Weights, index: int) -> Use:
            """The use of a block by the hybrid layer number ``turn``."""
            own, block = places[owners[turn % blocks]] / self.shared, shared[turn % blocks]
            mlp = _adapter(
                own / "feed_forward" / "gate_up_proj_adapter_list", turn, hidden, rank, 2 * c.intermediate_size
            )
            lists = [own / "self_attn" / f"linear_{part}_adapter_list" for part in "qkv"] if adapted else []
            adapters = [_adapter(one, turn, 2 * hidden, rank, 2 * hidden) for one in lists]
            return Use(place, block, index, adapters=adapters, mlp=AdaptedMLP(block.mlp, mlp))

        def layer(i: int) -> ZambaLayer:
            if kinds[i] != "hybrid":
                return ZambaLayer(places[i], c, Mamba2Mixer(places[i] / "mamba", sizes, 2 * i + 1), None)
            place = places[i] / "mamba_decoder"
            mixer = Mamba2Mixer(place / "mamba", sizes, 2 * i + 1)
            return ZambaLayer(place, c, mixer, use(hybrids.index(i), places[i], 2 * i))

        super().__init__(w, c, map(layer, range(c.layers)), owners)


def _adapter(w: Weights, number: int, inputs: int, rank: int, outputs: int) -> nn.Module:
    """An adapter of a list: x [T, inputs] -> [T, outputs]."""
    place = w.replicated() / number
    return nn.Sequential(Column.even(place, ("0",), inputs, rank), Column.even(place, ("1",), rank, outputs))
