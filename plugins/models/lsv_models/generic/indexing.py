"""Attention whose queries choose the tokens they see, by keys of their own that are cached beside the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lsv.attention.chosen import Lengths, see

ONE_TOKEN: Lengths = (np.array([0, 1], np.int32), np.array([1], np.int32))


@dataclass(frozen=True, slots=True)
class Indexing:
    """What a pass needs for modules that choose tokens (indexers)."""

    keep: Callable[[torch.Tensor], torch.Tensor]
    """Caches an indexer's keys [1, T, dim] and gives those of all tokens of all rows [1, C, dim]."""
    lengths: Lengths

    def see(self, device: torch.device) -> torch.Tensor:
        """bool [1, 1, T, C]."""
        return see(self.lengths, device)[None, None]

    def choose(self, indices: torch.Tensor) -> torch.Tensor:
        """The tokens that were chosen int [1, T, top], as bool [T, C]; what they do not see only fills up."""
        seen = see(self.lengths, indices.device)
        return torch.zeros_like(seen).scatter_(1, indices[0].long(), True) & seen


class IndexCache:
    """Stands for transformers' cache: of what a pass would keep there, it keeps the keys of indexers alone."""

    def __init__(self, indexing: Indexing) -> None:
        self._indexing = indexing

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *unused: Any, **also_unused: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key, value

    def update_indexer(self, key: torch.Tensor, layer: int) -> torch.Tensor:
        return self._indexing.keep(key)

    def get_seq_length(self, *unused: Any) -> int:
        return 0
