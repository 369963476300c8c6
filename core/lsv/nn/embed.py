"""Ids to vectors, and vectors to logits. Both are sharded over the vocabulary."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import nn
from torch.nn import functional

from lsv.errors import ConfigError
from lsv.nn.step import Step
from lsv.offers import OpSpec
from lsv.ops import Bindable, dtype_name
from lsv.weights.place import Part, Piece, Weights
from lsv.weights.quantizer import WEIGHT, Linear, LinearLayer, PlainLinear


class HeadAdapters(Protocol):
    """What changes logits where rows of the step go through adapters."""

    def change(self, y: torch.Tensor, x: torch.Tensor, step: Step) -> torch.Tensor:
        """This rank's logits y [R, width] of states x [R, size], as adapters have them."""
        ...


class Embed(Bindable):
    """ids int64 [T] -> [T, size]. All ranks hold equally many rows; the last ranks pad theirs with zeros."""

    op: ClassVar[str] = "embed"
    row_invariant: ClassVar[bool] = True

    def __init__(self, w: Weights, vocab_size: int, size: int) -> None:
        super().__init__()
        start, stop, width = w.shard.split_padded(vocab_size)
        self.name = w.name
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


class Positions(nn.Module):
    """Learned embeddings of positions 0 … ``count`` - 1: positions int64 [T] -> [T, size].

    They follow ``offset`` rows that no position uses. Raises ``ConfigError`` where inputs of ``max_len`` tokens would
    be longer than what was learned.
    """

    def __init__(self, w: Weights, count: int, size: int, max_len: int, *, offset: int = 0) -> None:
        super().__init__()
        if max_len > count:
            raise ConfigError(
                f"max_model_len={max_len} is more than the {count} positions the model has", param="max_model_len"
            )
        self.weight, self.offset = w.take("weight", (count + offset, size)), offset

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return functional.embedding(positions + self.offset if self.offset else positions, self.weight)


class Head(nn.Module):
    """[R, size] -> logits [R, vocab_size] on every rank. ``tied`` shares the embedding's weight, unless the checkpoint
    has another for the head.

    A weight format that quantises plain weights makes a tied head from the embedding's, which stays as it is; other
    formats leave a tied head plain.
    """

    lender: Embed | None = None
    """Whose weight it takes once the model is filled, where the checkpoint has none for it."""

    def __init__(self, w: Weights, vocab_size: int, size: int, *, tied: Embed | None = None) -> None:
        super().__init__()
        self.vocab_size, self.communicator = vocab_size, w.communicator
        self.adapters: HeadAdapters | None = None
        tied = tied if tied is not None and w.tie(tied.name) else None
        self.rows = start, stop, width = w.shard.split_padded(vocab_size)
        if tied is None and vocab_size % w.shard.size == 0:
            self.linear = self.make_linear(w, Part(w.name.rpartition(".")[2], vocab_size, start, stop), size)
        else:
            weight = tied.weight if tied else _vocabulary(w, vocab_size, size, (start, stop, width))
            self.linear = _of_plain_weight(w, LinearLayer(w.name, "head", size, (width,), False, w.dtype), weight)
            if tied is not None and isinstance(self.linear, PlainLinear):
                tied.head = self.linear

    def make_linear(self, w: Weights, part: Part, size: int) -> Linear:
        """The layer of a head that has a weight of its own."""
        return Weights(w.declaration, w.name.rpartition(".")[0]).linear("head", [part], size)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        logits: torch.Tensor = self.linear(x)
        if self.adapters is not None and step.adapters is not None:
            logits = self.adapters.change(logits, x, step)
        if self.communicator is None:
            return logits
        return self.communicator.all_gather(logits)[:, : self.vocab_size]


class ScaledEmbed(nn.Module):
    """``embed(ids) * factor``, with the factor rounded to the dtype of the embeddings, as families were trained."""

    def __init__(self, embed: Embed, factor: float) -> None:
        super().__init__()
        self.embed = embed
        self.factor = torch.tensor(factor, dtype=embed.weight.dtype).item()

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.embed(ids, step) * self.factor  # type: ignore[no-any-return]


class ScaledHead(nn.Module):
    """``cap * tanh(logits / divisor / cap)``; without a cap just ``logits / divisor``."""

    def __init__(self, head: Head, divisor: float, cap: float | None) -> None:
        super().__init__()
        self.head, self.divisor, self.cap = head, divisor, cap

    def forward(self, rows: torch.Tensor, step: Step) -> torch.Tensor:
        logits: torch.Tensor = self.head(rows, step)
        if self.divisor != 1.0:
            logits = logits / self.divisor
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


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
