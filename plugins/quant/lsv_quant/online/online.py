"""What formats made from a plain checkpoint share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import nn

from lsv_runtime.weights.quantizer import WEIGHT, Linear, LinearLayer, Quantizer, StoredTensor


class OnlineLinear(Linear):
    """A linear layer that takes the plain weight and, once it is filled, keeps its own form of it in buffers."""

    made_while_loading: ClassVar[bool] = True

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> None:
        super().__init__(layer)
        self.weight, self.bias = tensors["weight"], tensors.get("bias")

    def finish(self, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Add the bias to a float32 product, and round to the model's dtype."""
        return (y if self.bias is None else y + self.bias.float()).to(dtype)


Make = Callable[[LinearLayer, Mapping[str, nn.Parameter]], Linear]


class Online:
    """A quantizer whose checkpoints hold plain weights. ``head`` makes the output head, and tables of embeddings."""

    def __init__(self, name: str, make: Make, head: Make | None = None) -> None:
        self.name, self._make, self._head = name, make, make if head is None else head

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (WEIGHT,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return (self._head if layer.role == "head" else self._make)(layer, tensors)

    def table(self, layer: LinearLayer) -> Quantizer | None:
        return self
