"""Gemma 3 with images: SigLIP, its patches averaged in blocks and projected, tokens of an image that see one another.

Source: Gemma Team 2025 (Gemma 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.clip import TowerConfig
from lsv_models.gemma.gemma import Gemma3Layer
from lsv_models.gemma.halves import Gemma3Half
from lsv_models.rms.blocks import OffsetRMSNorm
from lsv_models.senses.mutual import MutualAttention
from lsv_models.senses.towers.siglip import PREFIXES, UNREAD, SigLIPEncoder
from lsv_runtime import products
from lsv_runtime.nn.encoder import check_placeholder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import Model
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Weights


class PoolingProjector(nn.Module):
    """``count`` embeddings an image, each of the mean of a block of patches."""

    def __init__(self, w: Weights, c: TowerConfig, count: int, size: int) -> None:
        super().__init__()
        self.edge = math.isqrt(count)
        self.block = c.side // self.edge
        self.before = OffsetRMSNorm(w / "mm_soft_emb_norm", c.hidden_size, c.norm_eps)
        self.projection = w.take("mm_input_projection_weight", (c.hidden_size, size))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        blocks = patches.unflatten(1, (self.edge, self.block, self.edge, self.block)).mean(dim=(2, 4))
        return products.matmul(self.before(blocks.flatten(0, 2)), self.projection)  # type: ignore[no-any-return]


class SeeingLayer(Gemma3Layer):
    attention = MutualAttention


class SeeingGemma3(Gemma3Half):
    mutual = "items"
    layer = SeeingLayer
    unread = UNREAD
    prefixes = (*PREFIXES, *Gemma3Half.prefixes)

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, config, max_len)
        keys = Keys({key: value for key, value in config.items() if key != "text_config"})
        tower, size = TowerConfig.read(keys.take("vision_config", dict)), self.norm.weight.shape[0]
        count = keys.count("mm_tokens_per_image", 256)
        edge = math.isqrt(count)
        if tower.clip or edge**2 != count or tower.side % edge:
            raise CheckpointError(
                f"config.json: mm_tokens_per_image must be a square whose root divides the {tower.side} patches of an "
                f"edge of SigLIP's, got {count}"
            )
        narrow = [
            layer.window for layer in self.attention_layers() if layer.window is not None and layer.window < count
        ]
        if narrow:
            raise CheckpointError(f"config.json: an image has {count} tokens, more than sliding_window={narrow[0]}")
        check_placeholder("image_token_index", _placeholder(keys), self.vocab_size)
        keys.agree("tie_word_embeddings", True)
        keys.finish(type(self).__name__)
        place = w.replicated()
        self.encoder = SigLIPEncoder(
            place, tower, PoolingProjector(place / "multi_modal_projector", tower, count, size)
        )


def _placeholder(keys: Keys) -> int:
    return keys.take("image_token_index", int, keys.take("image_token_id", int, 262144))


@dataclass(frozen=True, slots=True)
class Gemma3Family:
    """Gemma 3 as it is published: with its tower, or text alone where config.json has none."""

    prefixes: ClassVar[Prefixes] = SeeingGemma3.prefixes

    def __call__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> Model:
        family = SeeingGemma3 if config.get("vision_config") else Gemma3Half
        return family(w, config, max_len)


gemma3 = Gemma3Family()
