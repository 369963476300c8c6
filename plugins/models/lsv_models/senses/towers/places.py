"""Learned positions of a square of patches, stretched over images of other shapes."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional


def sample_places(
    table: torch.Tensor, spots: torch.Tensor, mode: Literal["bilinear", "bicubic"], *, corners: bool
) -> torch.Tensor:
    """The positions at ``spots`` [patches, 2], by row and column from -1 to 1, between those of ``table``
    [side * side, size]: [patches, size].

    With ``corners`` -1 and 1 are the middle of the outermost patches, otherwise their outer edge.
    """
    side = round(len(table) ** 0.5)
    square = table.float().T.unflatten(1, (side, side))
    found = functional.grid_sample(
        square[None], spots.flip(-1)[None, :, None], mode=mode, padding_mode="border", align_corners=corners
    )
    return found[0, :, :, 0].T.to(table.dtype)
