"""Attention of models whose images are seen at once: each of an item's tokens attends to all of them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from lsv_runtime.nn.attention import Attention, Sizes
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


class MutualAttention(Attention):
    """Causal but for the tokens of an item of media (``Step.items``), which are attended for once more."""

    variation: ClassVar[str] = "mutual"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **given)
        self.layer = dataclasses.replace(self.layer, mutual=True)

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer, items = self.layer, step.items
        q, k, v = self.make_heads(x, step)
        attended = step.backend.attend(q, k, v, layer, step.cache, step.attention[layer.group])
        if items is not None:
            both = dataclasses.replace(layer, causal=False)
            own = q.index_select(0, items.places)
            seen = step.backend.attend(own, None, None, both, step.cache, items.attention[layer.group])
            attended = attended.index_copy(0, items.places, seen)
        return self.project(attended, x)
