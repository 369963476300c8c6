"""GLM-4V-9B and CogAgent as published: EVA2-CLIP over one square before a ChatGLM. GLM-4.1V is another family.

Source: GLM Team 2024 (ChatGLM), and the code that the checkpoints are published with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from lsv_models.rms.chatglm import ChatGLM
from lsv_models.senses.towers.eva_clip import EvaConfig, EvaTower
from lsv_runtime import products
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.encoder import check_placeholder, scale_pixels
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import MRope, PairRope
from lsv_runtime.weights.place import Weights

_MERGE = 2
_PROJECTOR_EPS = 1e-5
_TOKENS = {"boi_token_id": 151339, "eoi_token_id": 151340, "pad_token_id": 151329}


class PlacedRope(PairRope):
    """Rotates by places that are not the indices of tokens: several have the same one. All axes of it are alike."""

    op = "rope.pairs.placed"
    axes = MRope.axes

    def reference(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return super().reference(heads, positions[0])


@dataclass(frozen=True, slots=True)
class SquareState:
    """An image being encoded: x [tokens, hidden]."""

    x: torch.Tensor


class Glm4v9bEncoder(Encoder):
    """Takes ``pixel_values`` uint8 [1, channels, size, size], and ``levels`` float32 [2, channels], the factor and the
    offset of colours. An image's embeddings stand between those of its beginning and its end.
    """

    def __init__(self, w: Weights, c: EvaConfig, size: int, inner: int) -> None:
        super().__init__()
        self.c, self.parts = c, c.layers
        self.tower = EvaTower(w, c)
        self.kernel = (w / "conv").take("weight", (size, c.hidden_size, _MERGE, _MERGE))
        self.bias = (w / "conv").take("bias", (size,))
        place = w / "linear_proj"
        self.projector = Column.even(place, ("linear_proj",), size, size)
        self.norm = LayerNorm(place / "norm1", size, _PROJECTOR_EPS)
        names = ("gate_proj", "dense_h_to_4h", "dense_4h_to_h")
        self.mlp = GatedMLP(place, size, inner, "silu", names=names)
        self.begins, self.ends = (w.take(name, (1, 1, size)) for name in ("boi", "eoi"))

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> SquareState:
        return SquareState(self.tower.embed(scale_pixels(inputs)))

    def advance(self, state: SquareState, part: int) -> SquareState | torch.Tensor:
        x = self.tower.layers[part](state.x, ((1, self.c.tokens),))
        return SquareState(x) if part + 1 < self.parts else self.project(x[1:])

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        shape = (1, self.c.channels, self.c.image_size, self.c.image_size)
        return {"pixel_values": torch.zeros(shape, dtype=torch.uint8), "levels": torch.ones(2, self.c.channels)}

    def project(self, patches: torch.Tensor) -> torch.Tensor:
        """patches [side², hidden] -> embeddings [2 + (side / 2)², size]."""
        grid = patches.unflatten(0, (self.c.side, self.c.side)).permute(2, 0, 1)
        merged = products.convolve(grid, self.kernel, self.bias, stride=_MERGE).flatten(1).T
        seen = self.mlp(functional.gelu(self.norm(self.projector(merged))))
        return torch.cat((self.begins[0], seen, self.ends[0])) / self.c.divisor


class Glm4v9b(ChatGLM):
    """All patches of an image stand in one place."""

    axes = PlacedRope.axes
    rope = PlacedRope
    prefixes = (*ChatGLM.prefixes, ("transformer.vision", "vision"))

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, config, max_len)
        c, inner = EvaConfig.read(config["vision_config"]), Keys(config).count("ffn_hidden_size")
        self.encoder = Glm4v9bEncoder(w.replicated() / "vision", c, self.norm.weight.shape[0], inner)

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        keys.take("vision_config", dict)
        for name, token in _TOKENS.items():
            check_placeholder(name, keys.take(name, int, token), c.vocab_size)
        return c
