"""GLM-4.1V: a tower over patches at the image's own resolution, and a GLM-4 with positions in time, height and width.

Source: GLM-V Team 2025 (GLM-4.1V-Thinking).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_models.qwen2_vl import Qwen2VL, Qwen2VLEncoder, VisionConfig, VisionState, patch_places
from lsv_models.rms.glm import Glm4, Glm4Layer
from lsv_models.senses.towers.places import sample_places
from lsv_runtime import products
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.encoder import Rotate, Runs, SelfAttention
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm, RMSNorm
from lsv_runtime.nn.rope import PairMRope
from lsv_runtime.weights.place import Weights

_MERGER_EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4vVisionConfig(VisionConfig):
    """``side`` x ``side`` learned positions. MLPs have ``outputs`` inside, the merger's has ``inner``."""

    side: int
    eps: float
    bias: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Glm4vVisionConfig:
        """``vision_config`` of a config.json. Raises ``CheckpointError``."""
        keys = Keys(config)
        inner, outputs = keys.count("intermediate_size", 13696), "out_hidden_size"
        found = cls.read(
            keys,
            size="hidden_size",
            inner=inner,
            outputs=outputs,
            activation="silu",
            layers=24,
            heads=12,
            side=keys.count("image_size", 336) // keys.count("patch_size", 14),
            eps=keys.take("rms_norm_eps", float, 1e-5),
            bias=keys.take("attention_bias", bool, False),
        )
        keys.finish("Glm4v's vision_config")
        return found


class Glm4vVisionLayer(nn.Module):
    def __init__(self, w: Weights, c: Glm4vVisionConfig) -> None:
        super().__init__()
        self.before_attn, self.before_mlp = (RMSNorm(w / name, c.size, c.eps) for name in ("norm1", "norm2"))
        self.attn = SelfAttention(w / "attn", ("qkv",), "proj", c.size, c.heads, bias=c.bias, unbiased=("proj",))
        self.mlp = GatedMLP(w / "mlp", c.size, c.outputs, c.activation, bias=False)

    def forward(self, x: torch.Tensor, runs: Runs, rotate: Rotate) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), runs, rotate)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Glm4vMerger(nn.Module):
    """Patches that are merged [N, merge², size] -> embeddings [N, outputs]."""

    def __init__(self, w: Weights, c: Glm4vVisionConfig) -> None:
        super().__init__()
        self.kernel = (w / "downsample").take("weight", (c.outputs, c.size, c.merge, c.merge))
        self.bias = (w / "downsample").take("bias", (c.outputs,))
        place = w / "merger"
        self.projector = Column.even(place, ("proj",), c.outputs, c.outputs)
        self.norm = LayerNorm(place / "post_projection_norm", c.outputs, _MERGER_EPS)
        self.mlp = GatedMLP(place, c.outputs, c.inner, c.activation, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = products.linear(x.transpose(1, 2).flatten(1), self.kernel.flatten(1), self.bias)
        return self.mlp(functional.gelu(self.norm(self.projector(x))))  # type: ignore[no-any-return]


class Glm4vEncoder(Qwen2VLEncoder):
    """Encodes images, and a video frame by frame; learned positions are stretched over each."""

    c: Glm4vVisionConfig

    def __init__(self, w: Weights, c: Glm4vVisionConfig) -> None:
        super().__init__(w, c)
        self.patch_bias = (w / "patch_embed" / "proj").take("bias", (c.size,))
        self.after_patches = RMSNorm(w / "post_conv_layernorm", c.size, c.eps)
        self.places = (w / "embeddings" / "position_embedding").take("weight", (c.side**2, c.size))

    def make_layer(self, w: Weights, c: VisionConfig) -> nn.Module:
        assert isinstance(c, Glm4vVisionConfig)
        return Glm4vVisionLayer(w, c)

    def make_merger(self, w: Weights, c: VisionConfig) -> tuple[nn.Module, nn.Module]:
        assert isinstance(c, Glm4vVisionConfig)
        return RMSNorm(w / "post_layernorm", c.size, c.eps), Glm4vMerger(w, c)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> VisionState:
        state = super().begin(inputs)
        frames, height, width = inputs["grid"].tolist()
        x = self.after_patches(state.x + self.patch_bias)
        return dataclasses.replace(state, x=x + self.stretch(height, width).repeat(frames, 1))

    def stretch(self, height: int, width: int) -> torch.Tensor:
        """The learned positions of a frame's patches, in between by bicubic interpolation: [patches, size]."""
        sizes = torch.tensor((height, width), device=self.places.device)
        spots = (patch_places(height, width, self.c.merge).to(sizes) + 0.5) / sizes * 2 - 1
        return sample_places(self.places, spots, "bicubic", corners=False)

    def merge(self, x: torch.Tensor) -> torch.Tensor:
        return self.merger(self.before_merger(x).unflatten(0, (-1, self.c.merge**2)))  # type: ignore[no-any-return]


class Glm4v(Qwen2VL):
    layer = Glm4Layer
    rope = PairMRope
    tokens = {"image_token_id": 151343, "video_token_id": 151344}
    defaults = {**Glm4.defaults, "head_dim": None, "norm_eps": 1e-5}

    def make_encoder(self, w: Weights, keys: Keys, c: DecoderConfig) -> Encoder:
        return Glm4vEncoder(w / "visual", Glm4vVisionConfig.of(keys.take("vision_config", dict)))
