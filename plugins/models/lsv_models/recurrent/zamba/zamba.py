"""Zamba: Mamba with several heads, and one block of attention that many layers share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_models.recurrent.hybrid import read_kinds, with_defaults
from lsv_models.recurrent.keys import TRAINING, ignore
from lsv_models.recurrent.mamba import read_rank
from lsv_models.recurrent.mamba_mixer import MambaSizes
from lsv_models.recurrent.zamba.shared import Block, SharingStack, Use, ZambaLayer
from lsv_runtime import products
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.recurrent.conv import CausalConv
from lsv_runtime.nn.recurrent.selective import SelectiveScan
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

KINDS = {"linear_attention": "recurrent", "mamba": "recurrent", "hybrid": "hybrid"}
_UNUSED = ("use_mamba_kernels", "use_associative_scan", "num_logits_to_keep", "layers_block_type", "layer_types")


class HeadedMixer(nn.Module):
    """Mamba whose channels are cut into heads, each with time steps, b and c of its own: x [T, hidden] -> the same.

    Rows of the first projection take turns: one of x, one of the gate.
    """

    def __init__(self, w: Weights, c: MambaSizes, heads: int, index: int) -> None:
        super().__init__()
        self.heads, self.parts, dim = heads, (c.rank, c.state, c.state), c.inner // heads
        self.project = Column.even(w, ("in_proj",), c.hidden, 2 * c.inner, bias=c.bias)
        self.conv = CausalConv(w / "conv1d", c.inner, c.conv, activation=c.activation, bias=c.conv_bias)
        self.select = w.take("x_proj_weight", (heads, sum(self.parts), dim))
        self.widen = w.take("dt_proj_weight", (heads, dim, c.rank))
        self.scan = SelectiveScan(w, c.inner, c.state, heads=heads)
        self.cache = StateCache(w, index, (self.conv.part, self.scan.part))
        self.out = Row(w, "out_proj", c.inner, c.hidden, reads=(0, c.inner), bias=c.bias)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        states = self.cache.of(step)
        x, gate = self.project(x).unflatten(-1, (-1, 2)).unbind(-1)
        x = self.conv(x.contiguous(), states)
        selected = products.einsum("thd,hrd->thr", x.unflatten(-1, (self.heads, -1)), self.select)
        dt, b, c = selected.split(self.parts, dim=-1)
        dt = products.einsum("thr,hdr->thd", dt, self.widen)
        y = self.scan(x, dt.flatten(1), b.flatten(1), c.flatten(1), states)
        return self.out((y * functional.silu(gate.float())).to(x.dtype))  # type: ignore[no-any-return]


class Zamba(SharingStack):
    shared = "shared_transf"

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(
            with_defaults(config, tie_word_embeddings=True, hidden_act="gelu"), {"head_dim": "attention_head_dim"}
        )
        ignore(keys, *TRAINING, *_UNUSED)
        hidden = keys.count("hidden_size")
        c = DecoderConfig.read(keys, norm_eps=1e-5, head_dim=2 * hidden // keys.count("num_attention_heads"))
        c = dataclasses.replace(c, windows=(None,) * 2 * c.layers)  # a layer keeps two things
        keys.agree("attention_hidden_size", 2 * hidden)
        keys.agree("tie_word_embeddings", True)  # that of blocks is meant, too
        heads = keys.count("n_mamba_heads", 2)
        sizes = MambaSizes(
            hidden=hidden,
            inner=keys.count("mamba_expand", 2) * hidden,
            state=keys.count("mamba_d_state", 16),
            rank=read_rank(keys, "mamba_dt_rank", hidden),
            conv=keys.count("mamba_d_conv", 4),
            activation=keys.take("hidden_mamba_act", str, "silu"),
            bias=keys.take("mamba_proj_bias", bool, False),
            conv_bias=keys.take("mamba_conv_bias", bool, True),
            eps=c.norm_eps,
        )
        every, first = keys.count("attn_layer_period", 6), keys.take("attn_layer_offset", int, 4)
        keys.finish("Zamba")
        kinds = read_kinds(config, ("layers_block_type",), c.layers, KINDS) or [
            "hybrid" if i == 2 or (i > 2 and (i - 3) % every == first) else "recurrent" for i in range(c.layers)
        ]
        places = [w / "model" / "layers" / i for i in range(c.layers)]
        owner = kinds.index("hybrid") if "hybrid" in kinds else 0
        names = ("gate_proj", "up_proj", "down_proj")
        block = Block(places[owner] / self.shared, c, None, names=names) if "hybrid" in kinds else None

        def layer(i: int) -> ZambaLayer:
            place, use = places[i], None
            if block is not None and kinds[i] == "hybrid":
                use, place = Use(place, block, 2 * i), place / "mamba_decoder"
            return ZambaLayer(place, c, HeadedMixer(place / "mamba", sizes, heads, 2 * i + 1), use)

        super().__init__(w, c, map(layer, range(c.layers)), [owner])
