"""Qwen2-VL: images and videos at their own resolution, and a Qwen2 with positions in time, height and width.

Source: Wang et al. 2024 (Qwen2-VL).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from lsv_models.qwen2 import Qwen2Layer
from lsv_runtime import products
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder, DecoderLayer
from lsv_runtime.nn.encoder import Rotate, Runs, SelfAttention, check_placeholder, scale_pixels
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import MRope, Rope
from lsv_runtime.weights.place import Weights

_EPS = 1e-6
_FRAME = 32
"""Embeddings along the edge of the frames that memory is measured with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The numbers of a tower. ``merge`` x ``merge`` patches become one embedding of ``outputs`` features."""

    size: int
    inner: int
    outputs: int
    layers: int
    heads: int
    patch: tuple[int, int, int, int]
    merge: int
    activation: str
    theta: float

    @classmethod
    def read(
        cls,
        keys: Keys,
        *,
        size: str,
        inner: int,
        outputs: str,
        activation: str,
        layers: int = 32,
        heads: int = 16,
        frames: int = 2,
        **own: Any,
    ) -> Self:
        """Take what all families of the kind have; ``size`` and ``outputs`` are their names for these two, numbers are
        what is meant where config.json leaves them out. ``own`` is what one has beside that.
        """
        keys.maybe("spatial_patch_size", int)
        rope = Keys(keys.take("rope_parameters", dict, {}))
        edge = keys.count("patch_size", 14)
        channels = keys.count("in_channels", keys.take("in_chans", int, 3))
        return cls(
            size=keys.count(size),
            inner=inner,
            outputs=keys.count(outputs),
            layers=keys.layers("depth", layers),
            heads=keys.count("num_heads", heads),
            patch=(channels, keys.count("temporal_patch_size", frames), edge, edge),
            merge=keys.count("spatial_merge_size", 2),
            activation=keys.take("hidden_act", str, activation),
            theta=rope.take("rope_theta", float, 10000.0),
            **own,
        )


class VisionLayer(nn.Module):
    names: ClassVar[tuple[str, str]] = ("fc1", "fc2")
    """Those of the MLP's two layers."""

    def __init__(self, w: Weights, c: VisionConfig) -> None:
        super().__init__()
        self.before_attn, self.before_mlp = (LayerNorm(w / name, c.size, _EPS) for name in ("norm1", "norm2"))
        self.attn = SelfAttention(w / "attn", ("qkv",), "proj", c.size, c.heads)
        self.mlp: nn.Module = FeedForward(w / "mlp", self.names, (c.size, c.inner, c.size), c.activation)

    def forward(self, x: torch.Tensor, runs: Runs, rotate: Rotate) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), runs, rotate)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class VisionState:
    """An item being encoded: x [patches, size], and how its patches divide into frames."""

    x: torch.Tensor
    rotate: Rotate
    frames: Runs


class Qwen2VLEncoder(Encoder):
    """Encodes images and videos; patches at different times do not attend to each other.

    Takes ``pixel_values`` uint8 [patches, channels, frames, pixels] in blocks of patches that are merged, ``levels``
    float32 [2, channels], the factor and the offset of colours, and ``grid`` int64 [3], the patches in time, height and
    width. One frame stands for all frames that a patch spans.
    """

    def __init__(self, w: Weights, c: VisionConfig) -> None:
        super().__init__()
        self.c, self.parts = c, c.layers
        self.patches = self.take_patches(w / "patch_embed" / "proj", c)
        self.layers = nn.ModuleList(self.make_layer(w / "blocks" / i, c) for i in range(c.layers))
        self.before_merger, self.merger = self.make_merger(w, c)

    def take_patches(self, w: Weights, c: VisionConfig) -> nn.Parameter:
        """What makes a layer's input of a patch: [size, …], with as many numbers in all as a patch has."""
        return w.take("weight", (c.size, *c.patch))

    def make_layer(self, w: Weights, c: VisionConfig) -> nn.Module:
        return VisionLayer(w, c)

    def make_norm(self, w: Weights, size: int) -> nn.Module:
        return LayerNorm(w, size, _EPS)

    def make_merger(self, w: Weights, c: VisionConfig) -> tuple[nn.Module, nn.Module]:
        """A norm, and what makes an embedding of the patches that are merged."""
        wide = c.size * c.merge**2
        merger = FeedForward(w / "merger" / "mlp", ("0", "2"), (wide, wide, c.outputs), "gelu")
        return self.make_norm(w / "merger" / "ln_q", c.size), merger

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        frames, height, width = inputs["grid"].tolist()
        x = self.embed(inputs)
        places = patch_places(height, width, self.c.merge).to(x.device)
        return VisionState(x, self.rotate(places, frames), ((frames, height * width),))

    def advance(self, state: Any, part: int) -> Any:
        x = self.layers[part](state.x, state.frames, state.rotate)
        return self.merge(x) if part + 1 == self.parts else VisionState(x, state.rotate, state.frames)

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        """A video of small frames: memory depends on the number of patches, not on their arrangement."""
        edge = min(_FRAME, math.isqrt(most))
        grid = (most // edge**2, edge * self.c.merge, edge * self.c.merge)
        channels, frames, *pixels = self.c.patch
        return {
            "pixel_values": torch.zeros(math.prod(grid), channels, frames, math.prod(pixels), dtype=torch.uint8),
            "levels": torch.ones(2, channels),
            "grid": torch.tensor(grid),
        }

    def embed(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The first layer's input [patches, size]."""
        pixels = scale_pixels(inputs).to(self.patches.dtype)
        return products.linear(pixels.expand(-1, -1, self.c.patch[1], -1).flatten(1), self.patches.flatten(1))

    def rotate(self, places: torch.Tensor, frames: int) -> Rotate:
        """The rotation of heads in ``frames`` with patches at ``places`` [patches, 2]."""
        return axial_rotation(places.repeat(frames, 1), self.c.size // self.c.heads, self.c.theta)

    def merge(self, x: torch.Tensor) -> torch.Tensor:
        """x [patches, size] -> embeddings [patches / merge², outputs]."""
        return self.merger(self.before_merger(x).unflatten(0, (-1, self.c.merge**2)).flatten(1))  # type: ignore[no-any-return]


def patch_places(height: int, width: int, merge: int) -> torch.Tensor:
    """Rows and columns of a frame's patches, block by block of those that are merged: int64 [patches, 2]."""
    places = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    return places.view(height // merge, merge, width // merge, merge, 2).transpose(1, 2).flatten(0, 3)


def axial_rotation(places: torch.Tensor, head_dim: int, theta: float) -> Rotate:
    """The rotation of heads by row in the first half of their feature pairs, by column in the second; in float32."""
    inverse = theta ** -(torch.arange(0, head_dim // 2, 2, device=places.device) / (head_dim // 2))
    angles = (places[..., None] * inverse).flatten(1)
    cos, sin = angles.cos(), angles.sin()
    cos, sin = (torch.cat(halves, dim=-1).unsqueeze(1) for halves in ((cos, cos), (-sin, sin)))

    def rotate(heads: torch.Tensor) -> torch.Tensor:
        x = heads.float()
        return (x * cos + x.roll(head_dim // 2, dims=-1) * sin).to(heads.dtype)

    return rotate


class Qwen2VL(Decoder):
    axes = MRope.axes
    # since version 4.52 of transformers
    prefixes = (("model.language_model", "model"), ("model.visual", "visual"))
    layer: ClassVar[type[DecoderLayer]] = Qwen2Layer
    rope: ClassVar[type[MRope]] = MRope
    tokens: ClassVar[Mapping[str, int]] = {"image_token_id": 151655, "video_token_id": 151656}
    """The placeholders of media, where config.json leaves them out."""
    defaults: ClassVar[Mapping[str, Any]] = {"rope_theta": 1e6, "first_window": 80}
    """Of the language model, as ``DecoderConfig.read`` takes them."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c = self.read_language(keys)
        encoder = self.make_encoder(w.replicated(), keys, c)
        for name, token in self.tokens.items():
            check_placeholder(name, keys.take(name, int, token), c.vocab_size)
        keys.finish(type(self).__name__)
        rope = self.rope(w, c.rope, max_len)
        super().__init__(w, c, (self.make_layer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
        self.encoder = encoder

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope) -> DecoderLayer:
        return self.layer(w, c, layer, rope)

    def make_encoder(self, w: Weights, keys: Keys, c: DecoderConfig) -> Encoder:
        """What encodes media for a language model ``c``; ``keys`` are those of the whole config.json."""
        own = Keys(keys.take("vision_config", dict))
        inner = own.take("mlp_ratio", int, 4) * own.take("embed_dim", int, 1280)
        vision = VisionConfig.read(own, size="embed_dim", inner=inner, outputs="hidden_size", activation="quick_gelu")
        own.finish("Qwen2VL's vision_config")
        return Qwen2VLEncoder(w / "visual", vision)

    def read_language(self, keys: Keys) -> DecoderConfig:
        """The language model's config: under ``text_config``, or in published files at the top level."""
        text = keys.maybe("text_config", dict)
        if text is None:
            return self.read_text(keys)
        tied = keys.take("tie_word_embeddings", bool, bool(text.get("tie_word_embeddings")))
        own = Keys({**text, "tie_word_embeddings": tied})
        c = self.read_text(own)
        own.finish(f"the text_config of {type(self).__name__}")
        return c

    def read_text(self, keys: Keys) -> DecoderConfig:
        """The numbers of the language model; a family that has keys of its own takes them here."""
        return DecoderConfig.read(keys, **self.defaults)
