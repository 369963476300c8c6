"""All of SigLIP as an encoder of square images, with what a family makes of their patches behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from lsv_models.clip import Tower, TowerConfig
from lsv_runtime.nn.encoder import scale_pixels
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Weights

# since version 4.52 of transformers, and before it; towers before version 5
PREFIXES: Prefixes = (
    ("model.vision_tower.vision_model", "vision_tower"),
    ("model.vision_tower", "vision_tower"),
    ("model.multi_modal_projector", "multi_modal_projector"),
    ("vision_tower.vision_model", "vision_tower"),
)
UNREAD = r"^vision_tower\.(head|embeddings\.position_ids)\b"
"""What checkpoints may hold of a tower that is not needed."""


@dataclass(frozen=True, slots=True)
class SquaresState:
    """Square images being encoded: x [images * tokens, hidden]."""

    x: torch.Tensor
    images: int


class SigLIPEncoder(Encoder):
    """All of SigLIP over square images. Takes ``pixel_values`` uint8 [images, channels, size, size], and ``levels``
    float32 [2, channels], the factor and the offset of colours.
    """

    def __init__(self, w: Weights, c: TowerConfig, projector: nn.Module) -> None:
        """``projector`` makes embeddings [count, size] of patches [images, tokens, hidden]."""
        super().__init__()
        self.c, self.parts, self.projector = c, c.layers, projector
        self.tower = Tower(w / "vision_tower", c, c.layers)
        self.after = LayerNorm(w / "vision_tower" / "post_layernorm", c.hidden_size, c.norm_eps)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> SquaresState:
        pixels = scale_pixels(inputs)
        return SquaresState(self.tower.embed(pixels), len(pixels))

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        shape = (1, self.c.channels, self.c.image_size, self.c.image_size)
        return {"pixel_values": torch.zeros(shape, dtype=torch.uint8), "levels": torch.ones(2, self.c.channels)}

    def advance(self, state: SquaresState, part: int) -> SquaresState | torch.Tensor:
        x = self.tower.layers[part](state.x, ((state.images, self.c.tokens),))
        if part + 1 < self.parts:
            return SquaresState(x, state.images)
        return self.projector(self.after(x).view(state.images, self.c.tokens, -1))  # type: ignore[no-any-return]
