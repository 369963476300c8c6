"""Rows that go through an adapter, multiplied so many at a time that a row's bits do not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_TILE = 16


def with_one_more(rows: torch.Tensor) -> torch.Tensor:
    """[..., size] -> [T + 1, size]: places without a token read and write the last row."""
    flat = rows.reshape(-1, rows.shape[-1])
    return torch.cat((flat, flat.new_zeros(1, flat.shape[-1])))


def in_tiles(slots: torch.Tensor, slot: int) -> Iterator[torch.Tensor]:
    """int64 [16] each: the places in ``slots`` [R] that are ``slot``, the last ones filled up with R."""
    places = (slots == slot).nonzero().flatten()
    for first in range(0, len(places), _TILE):
        tile = places.new_full((_TILE,), len(slots))
        tile[: len(places) - first] = places[first : first + _TILE]
        yield tile
