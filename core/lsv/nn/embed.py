"""Ids to vectors, and vectors to logits. Both are sharded over the vocabulary."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv.nn.step import Step
from lsv.offers import OpSpec
from lsv.ops import Bindable, dtype_name
from lsv.weights.place import Part, Piece, Weights
from lsv.weights.quantizer import WEIGHT, Linear, LinearLayer, PlainLinear


class Embed(Bindable):
    """ids int64 [T] -> [T, size]. All ranks hold equally many rows; the last ranks pad theirs with zeros."""

    op: ClassVar[str] = "embed"
    row_invariant: ClassVar[bool] = True

    def __init__(self, w: Weights, vocab_size: int, size: int) -> None:
        super().__init__()
        start, stop, width = w.shard.split_padded(vocab_size)
        self.vocab_size, self.start, self.communicator = vocab_size, start, w.communicator
        self.weight: nn.Parameter = _vocabulary(w, vocab_size, size, (start, stop, width))
        self.head: PlainLinear | None = None
        """The plain linear layer that shares the weight, if there is one."""

    def spec(self) -> OpSpec:
        rows, size = self.weight.shape
        facts = {"cut": self.communicator is not None, "tied": self.head is not None}
        flags = frozenset(name for name, holds in facts.items() if holds)
        return OpSpec(self.op, dtype_name(self.weight.dtype), shape={"rows": rows, "size": size}, flags=flags)

    def reference(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        if self.communicator is None:
            return functional.embedding(ids, self.weight)
        local = ids - self.start
        foreign = (local < 0) | (local >= self.weight.shape[0])
        x = functional.embedding(local.masked_fill(foreign, 0), self.weight)
        return self.communicator.all_reduce(x.masked_fill(foreign[:, None], 0.0))


class Head(nn.Module):
    """[R, size] -> logits [R, vocab_size] on every rank. ``tied`` shares the embedding's weight.

    A weight format that quantises plain weights makes a tied head from the embedding's, which stays as it is; other
    formats leave a tied head plain.
    """

    def __init__(self, w: Weights, vocab_size: int, size: int, *, tied: Embed | None = None) -> None:
        super().__init__()
        self.vocab_size, self.communicator = vocab_size, w.communicator
        start, stop, width = w.shard.split_padded(vocab_size)
        if tied is None and vocab_size % w.shard.size == 0:
            place, _, name = w.name.rpartition(".")
            part = Part(name, vocab_size, start, stop)
            self.linear = Weights(w.declaration, place).linear("head", [part], size)
        else:
            weight = tied.weight if tied else _vocabulary(w, vocab_size, size, (start, stop, width))
            self.linear = _of_plain_weight(w, LinearLayer(w.name, "head", size, (width,), False, w.dtype), weight)
            if tied is not None and isinstance(self.linear, PlainLinear):
                tied.head = self.linear

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        logits: torch.Tensor = self.linear(x)
        if self.communicator is None:
            return logits
        return self.communicator.all_gather(logits)[:, : self.vocab_size]


def _of_plain_weight(w: Weights, layer: LinearLayer, weight: nn.Parameter) -> Linear:
    """A layer in the model's format if that is made from a plain weight, else a plain layer."""
    quantizer = w.declaration.quantizer
    if quantizer.stored(layer) == (WEIGHT,):
        return quantizer.build(layer, {"weight": weight})
    return PlainLinear(layer, weight, None)


def _vocabulary(w: Weights, vocab_size: int, size: int, share: tuple[int, int, int]) -> nn.Parameter:
    """Rows ``[start, stop)`` of ``weight``, padded with zeros to ``width`` rows."""
    start, stop, width = share
    columns = slice(0, size)
    piece = Piece(
        (w / "weight").name,
        (vocab_size, size),
        (slice(start, stop), columns),
        (slice(0, stop - start), columns),
    )
    return w.declare((width, size), (piece,), padded=width != stop - start)
