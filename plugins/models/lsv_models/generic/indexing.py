"""Attention whose queries choose the tokens they see, by keys of their own that are cached beside the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from lsv_runtime.attention.chosen import Lengths, see

ONE_TOKEN: Lengths = (np.array([0, 1], np.int32), np.array([1], np.int32))
_TOPS = (torch.topk, torch.Tensor.topk)


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


class FirstOfEquals(TorchFunctionMode):
    """Within it ``topk`` chooses by ``choose_top``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return _take_top(*args, **given) if func in _TOPS else func(*args, **given)


def bind_indexers(base: nn.Module) -> None:
    """Have indexers choose the first of tokens with equal scores, whatever else is in the step.

    A score is a weighted sum over heads of ReLUs, so many scores are exactly zero if there are few heads.
    ``torch.topk`` chooses among equals by the length of the row. That is the whole text in transformers and the
    tokens of a step here, so what a token sees would depend on chunks and on other requests.
    """
    for module in base.modules():
        if type(module).__name__.endswith("Indexer"):
            module.forward = partial(_run_indexer, module.forward)


def choose_top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the ``count`` largest scores of each row, ascending: int64 [..., count]; of equals the first."""
    least = scores.topk(count, sorted=False).values.amin(-1, keepdim=True)
    above, level = scores > least, scores == least
    chosen = above | (level & (level.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    number = torch.where(chosen, chosen.cumsum(-1) - 1, count)  # the last place is cut off
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(number)
    return places.new_zeros(*scores.shape[:-1], count + 1).scatter_(-1, number, places)[..., :count]


def _run_indexer(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with FirstOfEquals():
        return forward(*args, **kwargs)


def _take_top(scores: torch.Tensor, k: int, dim: int = -1, **order: bool) -> Any:
    if dim not in (-1, scores.ndim - 1) or not order.get("largest", True):
        return torch.topk(scores, k, dim, **order)
    indices = choose_top(scores, k)
    return torch.return_types.topk((scores.gather(-1, indices), indices))
