"""What towers over images and sounds are made of: attention without a mask, and no cache.

A tower is small beside its decoder and runs once per item, so it is replicated: build it at ``w.replicated()``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.place import Weights

Runs = Sequence[tuple[int, int]]
"""How tokens divide into spans that attend to themselves alone, in order: (spans, tokens of each)."""

Rotate = Callable[[torch.Tensor], torch.Tensor]
"""Rotates heads [T, any, dim] by the places of their tokens."""


def check_placeholder(name: str, token: int, vocab_size: int) -> None:
    """Check the placeholder of media: it goes through the embedding before an item's embeddings replace it.

    Raises ``CheckpointError`` when it is outside the vocabulary; ``name`` is its key in config.json.
    """
    if not isinstance(token, int) or not 0 <= token < vocab_size:
        raise CheckpointError(f"config.json: {name} is {token!r:.100}, but the vocabulary ends at {vocab_size}")


def read_layer(name: str, layer: Any, layers: int) -> int:
    """The layer whose output is read, of so many of a tower, counted from 1; negative ones count from the end.

    Raises ``CheckpointError`` for any other; ``name`` is its key in config.json.
    """
    if not isinstance(layer, int) or not -layers <= layer <= layers or layer == 0:
        raise CheckpointError(f"config.json: {name} must be one of the tower's {layers}, got {layer!r:.100}")
    return layer % (layers + 1)


def unread_layers(place: str, read: int, layers: int) -> tuple[str, ...]:
    """What a model ignores of a tower of so many ``layers`` below ``place`` where only the first ones are ``read``."""
    numbers = "|".join(map(str, range(read, layers)))
    return (rf"^{re.escape(place)}\.({numbers})\.",) if numbers else ()


def merge_patches(x: torch.Tensor, merge: int) -> torch.Tensor:
    """x [squares, side * side, size] -> the features of ``merge`` by ``merge`` patches side by side
    [squares, side / merge, side / merge, merge * merge * size].
    """
    side = math.isqrt(x.shape[1]) // merge
    return x.reshape(len(x), side, merge, side, merge, -1).transpose(2, 3).flatten(3)


def scale_pixels(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """``pixel_values`` from 0 to 255, [N, channels, any, any], times the first of ``levels`` [2, channels] and less the
    second: as towers see colours.
    """
    factor, offset = inputs["levels"][:, :, None, None]
    return inputs["pixel_values"] * factor - offset  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """x [T, size] -> [T, size]; every token attends to its whole span.

    ``names`` are those of q, k and v, or one for all three fused; none of them has a bias without ``bias``. The
    ``unbiased`` ones have none, of them or ``out``. ``norms`` are taken of q and of k, of all their heads together.
    """

    def __init__(
        self,
        w: Weights,
        names: Sequence[str],
        out: str,
        size: int,
        heads: int,
        *,
        bias: bool = True,
        unbiased: Sequence[str] = (),
        norms: tuple[nn.Module, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Column.even(w, names, size, 3 * size // len(names), bias=bias, unbiased=unbiased)
        self.out = Column.even(w, (out,), size, size, bias=out not in unbiased)
        self.norms = None if norms is None else nn.ModuleList(norms)

    def forward(self, x: torch.Tensor, runs: Runs, rotate: Rotate | None = None, *, unseen: int = 0) -> torch.Tensor:
        """The last ``unseen`` tokens, of a span that is the only one of its run, attend and are not attended to."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if self.norms is not None:
            q, k = (norm(heads.flatten(1)).view_as(heads) for norm, heads in zip(self.norms, (q, k), strict=True))
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        k, v = (heads[: len(x) - unseen] for heads in (k, v))
        return self.out(attend(q, k, v, runs).flatten(1))  # type: ignore[no-any-return]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, runs: Runs) -> torch.Tensor:
    """q, k and v [T, heads, dim] -> [T, heads, dim], each span on its own; k and v may end within the last one."""
    attended, start = [], 0
    for spans, length in runs:
        stop = start + spans * length
        queries, keys, values = (x[start:stop].reshape(spans, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        seen = products.attend(queries, keys, values)
        attended.append(seen.transpose(1, 2).flatten(0, 1))
        start = stop
    return torch.cat(attended)
