"""What a recurrent layer keeps of a request: a state of named parts, in the pages of the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
"""Bytes."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """One of the tensors that make up a state."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StateLayer:
    """One recurrent layer on one rank."""

    index: int
    """Its number among the attention layers and recurrent layers of the model."""

    parts: tuple[StatePart, ...]
    """What it keeps of a request."""

    group: int = 0
    """Index of the KV group, and so of the block table."""

    place: int = 0
    """Position among the layers of the group."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, in which every part begins at a multiple of 64."""
        return sum(_aligned(part.nbytes) for part in self.parts)

    def views(self, pages: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts [pages, *shape] in pages of states uint8 [pages, state_bytes]."""
        found: dict[str, torch.Tensor] = {}
        begin = 0
        for part in self.parts:
            memory = pages[:, begin : begin + part.nbytes].view(part.dtype)
            found[part.name] = memory.view(len(pages), *part.shape)
            begin += _aligned(part.nbytes)
        return found


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
