"""EVA2-CLIP as GLM-4V has it: a tower over one square, whose norms stand behind attention and MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.clip import SquareConfig
from lsv_runtime import products
from lsv_runtime.nn.encoder import Runs, SelfAttention
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaConfig(SquareConfig):
    """Embeddings made of what the tower sees are divided by ``divisor``."""

    divisor: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> EvaConfig:
        """``vision_config`` of a config.json. Raises ``CheckpointError``."""
        keys = Keys(config)
        found = cls(
            hidden_size=keys.count("hidden_size"),
            intermediate_size=keys.count("intermediate_size"),
            layers=keys.layers("num_hidden_layers"),
            heads=keys.count("num_heads"),
            channels=keys.count("in_channels", 3),
            image_size=keys.count("image_size"),
            patch_size=keys.count("patch_size"),
            norm_eps=keys.take("layer_norm_eps", float),
            activation=keys.take("hidden_act", str, "gelu"),
            divisor=keys.take("scaling_factor", float),
        )
        if found.divisor <= 0:
            raise CheckpointError(f"config.json: scaling_factor must be positive, got {found.divisor}")
        keys.agree("num_positions", found.tokens)
        keys.finish("EVA2-CLIP")
        return found


class EvaLayer(nn.Module):
    def __init__(self, w: Weights, c: EvaConfig) -> None:
        super().__init__()
        size = c.hidden_size
        self.after_attn = LayerNorm(w / "input_layernorm", size, c.norm_eps)
        self.after_mlp = LayerNorm(w / "post_attention_layernorm", size, c.norm_eps)
        self.attn = SelfAttention(w / "attention", ("query_key_value",), "dense", size, c.heads)
        self.mlp = FeedForward(w / "mlp", ("fc1", "fc2"), (size, c.intermediate_size, size), c.activation)

    def forward(self, x: torch.Tensor, runs: Runs) -> torch.Tensor:
        x = x + self.after_attn(self.attn(x, runs))
        return x + self.after_mlp(self.mlp(x))  # type: ignore[no-any-return]


class EvaTower(nn.Module):
    def __init__(self, w: Weights, c: EvaConfig) -> None:
        super().__init__()
        self.c = c
        place = w / "patch_embedding"
        self.patches = (place / "proj").take("weight", (c.hidden_size, c.channels, c.patch_size, c.patch_size))
        self.bias = (place / "proj").take("bias", (c.hidden_size,))
        self.start = place.take("cls_embedding", (1, c.hidden_size))
        self.places = (place / "position_embedding").take("weight", (c.tokens, c.hidden_size))
        self.layers = nn.ModuleList(EvaLayer(w / "transformer" / "layers" / i, c) for i in range(c.layers))

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [1, channels, image_size, image_size] -> the first layer's input [tokens, hidden]."""
        cut = products.convolve(pixels.to(self.patches.dtype), self.patches, self.bias, stride=self.c.patch_size)
        return torch.cat((self.start, cut[0].flatten(1).T)) + self.places
