"""The vision towers of CLIP and SigLIP: one transformer over the patches of a square image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.nn.encoder import Runs, SelfAttention
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.place import Weights

_KINDS = {"clip_vision_model": ("quick_gelu", 1e-5), "siglip_vision_model": ("gelu_pytorch_tanh", 1e-6)}
"""activation and norm_eps for configs that leave them out."""
# keys of pooling heads, losses and the text towers they were trained with
_BESIDE = ("projection_dim", "vocab_size", "dropout", "vision_use_head", "initializer_factor", "num_image_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareConfig:
    """The numbers of a tower over a square, with a token for that before those of the patches."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    channels: int
    image_size: int
    patch_size: int
    norm_eps: float
    activation: str

    @property
    def side(self) -> int:
        """Patches per row."""
        return self.image_size // self.patch_size

    @property
    def tokens(self) -> int:
        """Tokens of a square: its patches behind one for its class."""
        return self.side**2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig(SquareConfig):
    """CLIP's has a class token before the patches, and a norm before its layers; SigLIP's has neither."""

    clip: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> TowerConfig:
        """``vision_config`` of a config.json; raises ``CheckpointError`` for any other kind of tower."""
        keys = Keys(config)
        kind = keys.take("model_type", str, "clip_vision_model")
        if kind not in _KINDS:
            raise CheckpointError(f"config.json: vision towers are {' or '.join(_KINDS)}, got {kind}")
        activation, norm_eps = _KINDS[kind]
        for name in _BESIDE:
            keys.maybe(name, object)
        found = cls(
            clip=kind == "clip_vision_model",
            hidden_size=keys.count("hidden_size", 768),
            intermediate_size=keys.count("intermediate_size", 3072),
            layers=keys.layers("num_hidden_layers", 12),
            heads=keys.count("num_attention_heads", 12),
            channels=keys.count("num_channels", 3),
            image_size=keys.count("image_size", 224),
            patch_size=keys.count("patch_size", 32 if kind == "clip_vision_model" else 16),
            norm_eps=keys.take("layer_norm_eps", float, norm_eps),
            activation=keys.take("hidden_act", str, activation),
        )
        keys.finish(kind)
        return found

    @property
    def tokens(self) -> int:
        """Tokens of one image."""
        return self.side**2 + self.clip


class TowerLayer(nn.Module):
    def __init__(self, w: Weights, c: TowerConfig) -> None:
        super().__init__()
        self.before_attn = LayerNorm(w / "layer_norm1", c.hidden_size, c.norm_eps)
        names = ("q_proj", "k_proj", "v_proj")
        self.attn = SelfAttention(w / "self_attn", names, "out_proj", c.hidden_size, c.heads)
        self.before_mlp = LayerNorm(w / "layer_norm2", c.hidden_size, c.norm_eps)
        sizes = (c.hidden_size, c.intermediate_size, c.hidden_size)
        self.mlp = FeedForward(w / "mlp", ("fc1", "fc2"), sizes, c.activation)

    def forward(self, x: torch.Tensor, runs: Runs) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), runs)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Tower(nn.Module):
    """The first ``depth`` layers of a tower; those after the last one that is read are not needed."""

    def __init__(self, w: Weights, c: TowerConfig, depth: int) -> None:
        super().__init__()
        self.c = c
        place = w / "embeddings"
        shape = (c.hidden_size, c.channels, c.patch_size, c.patch_size)
        self.patches = (place / "patch_embedding").take("weight", shape)
        self.bias = None if c.clip else (place / "patch_embedding").take("bias", (c.hidden_size,))
        self.start = place.take("class_embedding", (c.hidden_size,)) if c.clip else None
        self.places = (place / "position_embedding").take("weight", (c.tokens, c.hidden_size))
        self.before = LayerNorm(w / "pre_layrnorm", c.hidden_size, c.norm_eps) if c.clip else None
        self.layers = nn.ModuleList(TowerLayer(w / "encoder" / "layers" / i, c) for i in range(depth))

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [N, channels, image_size, image_size] -> the first layer's input [N * tokens, hidden]."""
        cut = products.convolve(pixels.to(self.patches.dtype), self.patches, self.bias, stride=self.c.patch_size)
        x = cut.flatten(2).transpose(1, 2)
        if self.start is not None:
            x = torch.cat((self.start.expand(len(x), 1, -1), x), dim=1)
        x = (x + self.places).flatten(0, 1)
        return x if self.before is None else self.before(x)
