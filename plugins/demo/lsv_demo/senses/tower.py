"""What the tower computes around its layers: from pixels or spectra to patches, and from patches to embeddings.

The steps and layers themselves are the caller's: lsv's when the model is served, plain torch where it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from lsv_demo.senses.inputs import ACROSS, BANDS, SIDE

SIZE = 192
"""Numbers in a patch."""
TILE = 4
"""Pixels in the side of a window of the first step."""
LOOKS = ((TILE * TILE * 3, 48), (9 * 48, 112), (9 * 112, SIZE))
"""Inputs and outputs of the steps from pixels to patches."""
LISTENS = ((3 * BANDS, 112), (3 * 112, 128), (3 * 128, SIZE))
"""Inputs and outputs of the steps from a spectrum to patches."""


def look(images: Tensor, steps: Iterable[Callable[[Tensor], Tensor]]) -> Tensor:
    """Images [items, SIDE, SIDE, 3] -> patches [items, 36, SIZE].

    Convolutions written as linear layers over windows: 4 x 4 pixels side by side, then twice 3 x 3 with a stride of 2.
    """
    items, across = len(images), SIDE // TILE
    x = images.reshape(items, across, TILE, across, TILE, 3).transpose(2, 3).flatten(3)
    for number, step in enumerate(steps):
        if number:
            padded = F.pad(x, (0, 0, 1, 1, 1, 1))
            height, width = x.shape[1:3]
            x = torch.cat([padded[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)], -1)
        x = F.gelu(step(x), approximate="tanh")
    return x.flatten(1, 2)


def listen(spectra: Tensor, steps: Iterable[Callable[[Tensor], Tensor]]) -> Tensor:
    """Spectra [items, columns, BANDS] -> patches [items, columns / 8, SIZE]: three times, windows of 3, stride 2."""
    x = spectra
    for step in steps:
        padded = F.pad(x, (0, 0, 1, 1))
        x = F.gelu(step(torch.cat([padded[:, i : i + x.shape[1] : 2] for i in range(3)], -1)), approximate="tanh")
    return x


def levels(shown: Tensor, dtype: torch.dtype) -> Tensor:
    """Pixels scaled to -1 … 1; spectra are in that range already."""
    return (shown if shown.is_floating_point() else shown / 127.5 - 1).to(dtype)


def merge(x: Tensor, kind: str) -> Tensor:
    """x [..., patches, size] -> [..., patches / MERGED, MERGED * size]."""
    if kind == "audio":
        return x.unflatten(-2, (-1, 2)).flatten(-2)
    grid = x.unflatten(-2, (ACROSS // 2, 2, ACROSS // 2, 2)).transpose(-4, -3)
    return grid.flatten(-3).flatten(-3, -2)
