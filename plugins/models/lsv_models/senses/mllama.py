"""Llama 3.2 Vision: a Llama some of whose layers attend to an image instead of the tokens before.

Source: Llama Team 2024 (The Llama 3 Herd of Models, section 7), as its weights were published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_models.senses.towers.tiles import TilesConfig, TilesTower
from lsv_runtime.nn.attention import CrossAttention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.encoder import check_placeholder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_SPECIALS = 8
"""Rows of the embedding that have no logits; the first is that of the placeholder."""
_CROSS = [3, 8, 13, 18, 23, 28, 33, 38]


class CrossLayer(nn.Module):
    """A gated block that attends to the row's image: x [T, hidden] -> [T, hidden].

    Tokens before the image, and those of rows without one, pass it unchanged.
    """

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, source: int) -> None:
        super().__init__()
        self.before_attn = RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps)
        self.cross = CrossAttention(w / "cross_attn", c, layer, source, qk_norm=True, optional=True)
        self.attn_gate = w.take("cross_attn_attn_gate", (1,))
        self.before_mlp = RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps)
        self.mlp = GatedMLP(w / "mlp", c.hidden_size, c.intermediate_size, c.activation)
        self.mlp_gate = w.take("cross_attn_mlp_gate", (1,))

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        y = x + self.attn_gate.tanh() * self.cross(self.before_attn(x), step)
        y = y + self.mlp_gate.tanh() * self.mlp(self.before_mlp(y))
        # not a product: what rows without an image find on the null page may be no number at all
        return torch.where(step.positions[1, :, None] >= 0, y, x)


class ShortHead(Head):
    """A head over fewer ids than the embedding has. The others get the lowest number there is: nobody draws them."""

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        logits = super().forward(x, step)
        return functional.pad(logits, (0, _SPECIALS), value=torch.finfo(logits.dtype).min)


class Mllama(Decoder):
    """Prompts have one image or none; the layers that attend to it keep its keys and values alone."""

    axes = 2
    # since version 4.52 of transformers, and before it
    prefixes = (
        ("model.language_model", "model"),
        ("model.vision_model", "vision_model"),
        ("model.multi_modal_projector", "multi_modal_projector"),
        ("language_model.model", "model"),
        ("language_model.lm_head", "lm_head"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        text = Keys(keys.take("text_config", dict))
        tower = TilesConfig.read(keys.take("vision_config", dict))
        for one in (keys, text):
            one.agree("tie_word_embeddings", False)
        c = DecoderConfig.read(text, rope_theta=500000.0, norm_eps=1e-5)
        cross = _read_cross(text, c.layers)
        text.finish("the text_config of Llama 3.2")
        c = replace(c, vocab_size=c.vocab_size + _SPECIALS)
        check_placeholder("image_token_index", keys.take("image_token_index", int, 128256), c.vocab_size)
        keys.finish(type(self).__name__)
        rope, place, source = Rope(w, c.rope, max_len), w / "model" / "layers", tower.most * tower.tokens
        layers: Any = (
            CrossLayer(place / i, c, i, source) if i in cross else LlamaLayer(place / i, c, i, rope)
            for i in range(c.layers)
        )
        super().__init__(w, c, layers)
        self.encoder = TilesTower(w.replicated(), tower, c.hidden_size)

    def make_head(self, w: Weights, c: DecoderConfig, tied: Embed | None) -> Head:
        return ShortHead(w, c.vocab_size - _SPECIALS, c.hidden_size)


def _read_cross(keys: Keys, layers: int) -> frozenset[int]:
    """The layers that attend to images."""
    found = keys.take("cross_attention_layers", list, _CROSS)
    if not found or not all(type(layer) is int and 0 <= layer < layers for layer in found):
        raise CheckpointError(
            f"config.json: cross_attention_layers must name some of the {layers} layers, got {found!r:.100}"
        )
    return frozenset(found)
