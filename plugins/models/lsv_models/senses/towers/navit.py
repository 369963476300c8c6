"""SigLIP over images of any shape: its learned positions are those of a square, stretched over each image.

Sources: Zhai et al. 2023 (SigLIP), Dehghani et al. 2023 (NaViT).
"""

from __future__ import annotations

import torch

from lsv_models.clip import Tower
from lsv_runtime import products


class StretchedTower(Tower):
    """SigLIP's tower over an image of as many patches as come."""

    def embed_patches(self, pixels: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """pixels [h * w, channels, patch_size, patch_size], row by row, and their grid (h, w) -> the first layer's
        input [h * w, hidden].
        """
        x = products.linear(pixels.flatten(1).to(self.patches.dtype), self.patches.flatten(1), self.bias)
        return x + self.places[stretch(grid, self.c.side).to(x.device)]


def stretch(grid: tuple[int, int], side: int) -> torch.Tensor:
    """int64 [h * w]: the place of each patch of a grid (h, w) among those of a square of ``side`` by ``side``.

    By products in float32, as transformers' Idefics2 has them: rounding gives some patches the place before the one
    that fractions give, and so it did where such towers were trained.
    """
    rows, columns = ((torch.arange(count) * (1 / torch.tensor(count)) * side).long() for count in grid)
    return (rows[:, None] * side + columns).flatten()
