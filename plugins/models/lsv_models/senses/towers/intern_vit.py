"""InternViT: a transformer over the patches of square images, whose blocks scale what they add.

Source: Chen et al. 2023 (InternVL). Its 300M form has layer norms, the 6B form RMS norms, of q and k as well.
"""

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
from lsv_runtime.nn.norm import LayerNorm, RMSNorm
from lsv_runtime.weights.place import Weights

_NORMS: Mapping[str, type[LayerNorm | RMSNorm]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
# of a tower with experts, which no published one has
_EXPERTS = (
    "capacity_factor", "eval_capacity_factor", "laux_allreduce", "moe_coeff_ratio", "moe_intermediate_size",
    "moe_output_scale", "noisy_gate_policy", "num_experts", "num_routed_experts", "num_shared_experts",
    "shared_expert_intermediate_size", "use_residual", "use_rts", "use_weighted_residual",
)  # fmt: skip
# what training begins with
_BEGINNINGS = ("initializer_factor", "layer_scale_init_value", "projection_dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig(SquareConfig):
    """``names`` are those of q, k and v, or one for all three."""

    norm: type[LayerNorm | RMSNorm]
    bias: bool
    qk_norm: bool
    names: tuple[str, ...]

    @classmethod
    def read_published(cls, config: Mapping[str, Any]) -> TowerConfig:
        """``vision_config`` of an ``InternVLChatModel``. Raises ``CheckpointError`` for another tower."""
        keys = Keys(config, {"attention_bias": "qkv_bias", "use_qk_norm": "qk_normalization"})
        keys.agree("model_type", "intern_vit_6b")
        if not keys.take("use_moe", bool, False):
            keys.skip(*_EXPERTS)
        return cls._read(keys, ("qkv",), norm="rms_norm", qk_norm=True)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> TowerConfig:
        """``vision_config`` of transformers' own form. Raises ``CheckpointError`` for another tower."""
        keys = Keys(config)
        keys.agree("model_type", "internvl_vision")
        keys.agree("use_mean_pooling", True)
        keys.agree("use_absolute_position_embeddings", True)
        keys.agree("use_mask_token", False)
        return cls._read(keys, ("q_proj", "k_proj", "v_proj"), norm="layer_norm", qk_norm=False)

    @classmethod
    def _read(cls, keys: Keys, names: tuple[str, ...], *, norm: str, qk_norm: bool) -> TowerConfig:
        kind = keys.take("norm_type", str, norm)
        if kind not in _NORMS:
            raise CheckpointError(f"config.json: norm_type must be {' or '.join(_NORMS)}, got {kind!r:.50}")
        keys.skip(*_BEGINNINGS)
        found = cls(
            hidden_size=keys.count("hidden_size", 1024),
            intermediate_size=keys.count("intermediate_size", 4096),
            layers=keys.layers("num_hidden_layers", 24),
            heads=keys.count("num_attention_heads", 16),
            channels=keys.count("num_channels", 3),
            image_size=_side(keys, "image_size", 448),
            patch_size=_side(keys, "patch_size", 14),
            norm=_NORMS[kind],
            norm_eps=keys.take("layer_norm_eps", float, 1e-6),
            activation=keys.take("hidden_act", str, "gelu"),
            bias=keys.take("attention_bias", bool, False),
            qk_norm=keys.take("use_qk_norm", bool, qk_norm),
            names=names,
        )
        keys.finish("InternViT")
        return found


def _side(keys: Keys, name: str, default: int) -> int:
    """A length that may be given for both axes. Raises ``CheckpointError`` where these differ."""
    if not isinstance(keys.json.get(name), list):
        return keys.count(name, default)
    sides = keys.take(name, list)
    if len(set(map(repr, sides))) != 1:
        raise CheckpointError(f"config.json: {name} must be the same for both axes, got {sides!r:.100}")
    return Keys({name: sides[0]}).count(name)


class TowerLayer(nn.Module):
    def __init__(self, w: Weights, c: TowerConfig) -> None:
        super().__init__()
        size, place = c.hidden_size, w / "attn"
        self.before_attn, self.before_mlp = (c.norm(w / name, size, c.norm_eps) for name in ("norm1", "norm2"))
        norms = (
            (RMSNorm(place / "q_norm", size, c.norm_eps), RMSNorm(place / "k_norm", size, c.norm_eps))
            if c.qk_norm
            else None
        )
        self.attn = SelfAttention(place, c.names, "proj", size, c.heads, bias=c.bias, norms=norms)
        self.mlp = FeedForward(w / "mlp", ("fc1", "fc2"), (size, c.intermediate_size, size), c.activation)
        self.attn_scale, self.mlp_scale = (w.take(name, (size,)) for name in ("ls1", "ls2"))

    def forward(self, x: torch.Tensor, runs: Runs) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), runs) * self.attn_scale
        return x + self.mlp(self.before_mlp(x)) * self.mlp_scale


class Tower(nn.Module):
    """The first ``depth`` layers of a tower; those after the last one that is read are not needed."""

    def __init__(self, w: Weights, c: TowerConfig, depth: int) -> None:
        super().__init__()
        self.c = c
        place = w / "embeddings"
        shape = (c.hidden_size, c.channels, c.patch_size, c.patch_size)
        self.patches = (place / "patch_embedding").take("weight", shape)
        self.bias = (place / "patch_embedding").take("bias", (c.hidden_size,))
        self.start = place.take("class_embedding", (1, 1, c.hidden_size))
        self.places = place.take("position_embedding", (1, c.tokens, c.hidden_size))
        self.layers = nn.ModuleList(TowerLayer(w / "encoder" / "layers" / i, c) for i in range(depth))

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [N, channels, image_size, image_size] -> the first layer's input [N * tokens, hidden]."""
        cut = products.convolve(pixels.to(self.patches.dtype), self.patches, self.bias, stride=self.c.patch_size)
        x = torch.cat((self.start.expand(len(cut), -1, -1), cut.flatten(2).transpose(1, 2)), dim=1)
        return (x + self.places).flatten(0, 1)
