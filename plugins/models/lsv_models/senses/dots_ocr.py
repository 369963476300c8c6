"""dots.ocr: a tower over patches at the image's own resolution, and a Qwen2 whose tokens stand one after the other.

Source: the configurations and code that its checkpoints are published with (rednote-hilab 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.qwen2 import Qwen2
from lsv_models.qwen2_vl import Qwen2VLEncoder, VisionConfig, VisionLayer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.encoder import SelfAttention, check_placeholder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.weights.place import Weights

_NAMES = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads", "in_channels": "num_channels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DotsVisionConfig(VisionConfig):
    eps: float
    bias: bool
    """Of attention and MLPs; the patches' layer and the merger have one anyway."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> DotsVisionConfig:
        """``vision_config`` of a config.json. Raises ``CheckpointError``."""
        keys = Keys(config, _NAMES)
        found = cls.read(
            keys,
            size="embed_dim",
            inner=keys.count("intermediate_size", 4224),
            outputs="hidden_size",
            activation="silu",
            layers=42,
            heads=12,
            frames=1,
            eps=keys.take("rms_norm_eps", float, 1e-5),
            bias=keys.take("use_bias", bool, False),
        )
        for name, own in (("temporal_patch_size", 1), ("post_norm", True), ("is_causal", False)):
            keys.agree(name, own)
        keys.finish("DotsOCR's vision_config")
        return found


class DotsVisionLayer(VisionLayer):
    """RMSNorm and a gated MLP instead of Qwen2-VL's."""

    def __init__(self, w: Weights, c: DotsVisionConfig) -> None:
        nn.Module.__init__(self)
        self.before_attn, self.before_mlp = (RMSNorm(w / name, c.size, c.eps) for name in ("norm1", "norm2"))
        unbiased = () if c.bias else ("proj",)
        self.attn = SelfAttention(w / "attn", ("qkv",), "proj", c.size, c.heads, bias=c.bias, unbiased=unbiased)
        self.mlp = GatedMLP(w / "mlp", c.size, c.inner, c.activation, bias=c.bias, names=("fc1", "fc3", "fc2"))


class DotsEncoder(Qwen2VLEncoder):
    """Encodes images; patches are normalised before the first layer and after the last one."""

    c: DotsVisionConfig

    def __init__(self, w: Weights, c: DotsVisionConfig) -> None:
        super().__init__(w, c)
        place = w / "patch_embed"
        self.patch_bias = (place / "proj").take("bias", (c.size,))
        self.after_patches = RMSNorm(place / "norm", c.size, c.eps)

    def take_patches(self, w: Weights, c: VisionConfig) -> nn.Parameter:
        channels, _, *pixels = c.patch
        return w.take("weight", (c.size, channels, *pixels))

    def make_layer(self, w: Weights, c: VisionConfig) -> nn.Module:
        assert isinstance(c, DotsVisionConfig)
        return DotsVisionLayer(w, c)

    def make_merger(self, w: Weights, c: VisionConfig) -> tuple[nn.Module, nn.Module]:
        assert isinstance(c, DotsVisionConfig)
        before, merger = super().make_merger(w, c)
        return nn.Sequential(RMSNorm(w / "post_trunk_norm", c.size, c.eps), before), merger

    def embed(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.after_patches(super().embed(inputs) + self.patch_bias)  # type: ignore[no-any-return]


class DotsOCR(Qwen2):
    prefixes = (
        ("vision_tower.patch_embed.patchifier", "visual.patch_embed"),
        ("vision_tower.blocks.*.attn.qkv_proj", "visual.blocks.*.attn.qkv"),
        ("vision_tower.blocks.*.attn.out_proj", "visual.blocks.*.attn.proj"),
        ("vision_tower", "visual"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, config, max_len)
        c, size = DotsVisionConfig.of(config["vision_config"]), self.norm.weight.shape[0]
        if c.outputs != size:
            raise CheckpointError(f"config.json: vision_config makes embeddings of {c.outputs}, the text has {size}")
        self.encoder = DotsEncoder(w.replicated() / "visual", c)

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        keys.take("vision_config", dict)
        check_placeholder("image_token_id", keys.take("image_token_id", int, 151665), c.vocab_size)
        return c
