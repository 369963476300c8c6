"""Qwen3-VL's tower: learned positions stretched over each image, and features of some layers for the decoder's first.

Sources: Qwen Team 2025 (Qwen3-VL), Meng et al. 2024 (DeepStack).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.qwen2_vl import Qwen2VLEncoder, VisionConfig, VisionLayer, VisionState, patch_places
from lsv_models.senses.towers.places import sample_places
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.place import Weights

_EPS = 1e-6
_NAMES = ("linear_fc1", "linear_fc2")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepVisionConfig(VisionConfig):
    """``side`` x ``side`` learned positions; the outputs of layers ``deep``, counted from 0, go deeper."""

    side: int
    deep: tuple[int, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any], whose: str) -> DeepVisionConfig:
        """``vision_config`` of a config.json; ``whose`` names the model. Raises ``CheckpointError``."""
        keys = Keys(config)
        places = keys.count("num_position_embeddings", 2304)
        deep = keys.take("deepstack_visual_indexes", list, [8, 16, 24])
        found = cls.read(
            keys,
            size="hidden_size",
            inner=keys.count("intermediate_size", 4304),
            outputs="out_hidden_size",
            activation="gelu_pytorch_tanh",
            layers=27,
            side=math.isqrt(places),
            deep=tuple(deep),
        )
        keys.agree("apply_vit_abs_pos_embed", True)
        keys.skip("image_size", "tokens_per_second", "tie_word_embeddings")
        keys.finish(f"{whose}'s vision_config")
        if math.isqrt(places) ** 2 != places:
            raise CheckpointError(f"config.json: num_position_embeddings must be those of a square, got {places}")
        inside = all(type(layer) is int and 0 <= layer < found.layers for layer in deep)
        if not inside or any(first >= second for first, second in pairwise(deep)):
            raise CheckpointError(
                f"config.json: deepstack_visual_indexes must ascend and be below {found.layers}, got {deep!r:.100}"
            )
        return found


class DeepVisionLayer(VisionLayer):
    names = _NAMES


class MergerNames(NamedTuple):
    """Those of what merges patches: where the ones of what goes deeper are, and the parts of each."""

    deeper: str = "deepstack_merger_list"
    norm: str = "norm"
    mlp: tuple[str, str] = _NAMES


class DeepMerger(nn.Module):
    """x [patches, size] -> [patches / merge², outputs]; patches are normed together."""

    def __init__(self, w: Weights, c: VisionConfig, names: MergerNames) -> None:
        super().__init__()
        wide = c.size * c.merge**2
        self.norm = LayerNorm(w / names.norm, wide, _EPS)
        self.mlp = FeedForward(w, names.mlp, (wide, wide, c.outputs), "gelu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.norm(x.view(-1, self.norm.weight.numel())))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class DeepState(VisionState):
    """With what goes deeper of the layers so far: [patches / merge², outputs] each."""

    deeper: tuple[torch.Tensor, ...]


class DeepEncoder(Qwen2VLEncoder):
    """Encodes images, and pairs of a video's frames. Its rows are the embedding and what goes deeper, side by side."""

    c: DeepVisionConfig
    names: ClassVar[MergerNames] = MergerNames()

    def __init__(self, w: Weights, c: DeepVisionConfig) -> None:
        super().__init__(w, c)
        self.patch_bias = (w / "patch_embed" / "proj").take("bias", (c.size,))
        self.places = (w / "pos_embed").take("weight", (c.side**2, c.size))
        place = w / self.names.deeper
        self.deep_mergers = nn.ModuleList(DeepMerger(place / number, c, self.names) for number in range(len(c.deep)))
        self.deeper = len(c.deep)
        self.width = (1 + self.deeper) * c.outputs

    def make_layer(self, w: Weights, c: VisionConfig) -> nn.Module:
        return DeepVisionLayer(w, c)

    def make_merger(self, w: Weights, c: VisionConfig) -> tuple[nn.Module, nn.Module]:
        wide, place, names = c.size * c.merge**2, w / "merger", self.names
        norm = LayerNorm(place / names.norm, c.size, _EPS)
        return norm, FeedForward(place, names.mlp, (wide, wide, c.outputs), "gelu")

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> DeepState:
        state = super().begin(inputs)
        frames, height, width = inputs["grid"].tolist()
        x = state.x + self.patch_bias + self.stretch(height, width).repeat(frames, 1)
        return DeepState(x, state.rotate, state.frames, ())

    def advance(self, state: DeepState, part: int) -> DeepState | torch.Tensor:
        x, deeper = self.layers[part](state.x, state.frames, state.rotate), state.deeper
        if part in self.c.deep:
            deeper += (self.deep_mergers[len(deeper)](x),)
        if part + 1 < self.parts:
            return dataclasses.replace(state, x=x, deeper=deeper)
        return torch.cat((self.merge(x), *deeper), dim=1)

    def stretch(self, height: int, width: int) -> torch.Tensor:
        """The learned positions of a frame's patches, in between by linear interpolation: [patches, size]."""
        last = torch.tensor((height, width), device=self.places.device) - 1
        spots = patch_places(height, width, self.c.merge).to(last) / last.clamp(min=1) * 2 - 1
        return sample_places(self.places, spots, "bilinear", corners=True)
