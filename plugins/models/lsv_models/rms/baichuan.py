"""Baichuan 1 and 2: Llama with q, k and v in one tensor; the large ones have ALiBi, the second ones a normed head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.attention import Attention, Heads, Sizes
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.gpt.alibi import alibi_slopes
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Part, Weights
from lsv_runtime.weights.quantizer import WEIGHT, Linear, LinearLayer, PlainLinear

_NORMED = 125_696
"""The vocabulary of Baichuan 2; nothing else in config.json tells it from its predecessor."""
_ROTATED = 4096
"""The hidden size of the models that have a rope."""


class BaichuanAttention(Attention):
    """Attention with ALiBi where there is no rope."""

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **given)
        if rope is None:
            first, last = Heads(w, c).queries
            alibi = torch.tensor(alibi_slopes(c.heads)[first:last], dtype=torch.float32, device=w.device)
            self.layer = replace(self.layer, alibi=alibi)


class BaichuanLayer(LlamaLayer):
    attention = BaichuanAttention
    fused = partial(Heads.stacked, name="W_pack")
    qkv_bias = out_bias = mlp_bias = False


class NormedLinear(PlainLinear):
    """A linear layer whose rows are brought to length one as they are filled."""

    def filled(self) -> None:
        self.weight.data.copy_(functional.normalize(self.weight.data))


class NormedHead(Head):
    """A head whose rows have length one. It is not quantised."""

    def make_linear(self, w: Weights, part: Part, size: int) -> Linear:
        layer = LinearLayer(w.name, "head", size, (part.width,), False, w.dtype)
        place = Weights(w.declaration, w.name.rpartition(".")[0])
        return NormedLinear(layer, place.take_stored(WEIGHT, [part], size, (0, size)), None)


class Baichuan(DenseDecoder):
    layer = BaichuanLayer
    keys = {"max_position_embeddings": "model_max_length"}

    def make_ropes(self, w: Weights, c: DecoderConfig, max_len: int) -> Sequence[Rope | None]:
        return super().make_ropes(w, c, max_len) if c.hidden_size == _ROTATED else [None] * c.layers

    def make_head(self, w: Weights, c: DecoderConfig, tied: Embed | None) -> Head:
        normed = c.vocab_size == _NORMED and tied is None
        return (NormedHead if normed else Head)(w, c.vocab_size, c.hidden_size, tied=tied)
