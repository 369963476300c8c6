"""Weights given as plain tensors: a checkpoint source for tests, and filling of single modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import nn

from lsv_runtime.weights.checkpoint import CheckpointSource, TensorInfo
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.place import Declaration, Shard, Weights
from lsv_runtime.weights.quantizer import Quantizer, Unquantised

M = TypeVar("M", bound=nn.Module)


class TensorsSource:
    """A ``CheckpointSource`` over tensors in memory; ``reads`` lists (name, first, last) of what was read."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._infos = {name: TensorInfo(tuple(x.shape), x.dtype) for name, x in tensors.items()}
        self.reads: list[tuple[str, int, int]] = []

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        self.reads.append((name, first, last))
        tensor = self._tensors[name]
        return tensor[first:last].clone() if tensor.ndim else tensor.clone()

    def close(self) -> None:
        """Nothing is open."""


def place(
    *,
    dtype: torch.dtype = torch.float32,
    rank: int = 0,
    size: int = 1,
    quantizer: Quantizer | None = None,
    device: torch.device = torch.device("cpu"),  # noqa: B008  a device never changes
) -> Weights:
    """The root of an empty declaration; ranks have no communicator: sums are left to the test."""
    return Weights(Declaration(dtype, device, quantizer or Unquantised(), Shard(rank, size)))


def fill_module(module: M, w: Weights, *sources: CheckpointSource) -> M:
    """Check and fill what ``module`` declared through ``w``, from each source in turn."""
    filler = Filler(module, w.declaration.slots)
    for source in sources:
        filler.fill(source, w.device)
    return module
