"""Ids to vectors, and vectors to logits. Both are sharded over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_base.errors import ConfigError
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable, TableKernel, dtype_name
from lsv_runtime.weights.place import Part, Piece, Weights
from lsv_runtime.weights.quantizer import WEIGHT, Linear, LinearLayer, PlainLinear, TableQuantizer


class HeadAdapters(Protocol):
    """What changes logits where rows of the step go through adapters."""

    def change(self, y: torch.Tensor, x: torch.Tensor, step: Step) -> torch.Tensor:
        """This rank's logits y [R, width] of states x [R, size], as adapters have them."""
        ...


class Embed(Bindable):
    """ids int64 [T] -> [T, size]. All ranks hold equally many rows; the last ranks pad theirs with zeros.

    The rows are a plain ``weight`` or those of ``table``, a linear layer that may also be the head.
    """

    op: ClassVar[str] = "embed"
    row_invariant: ClassVar[bool] = True
    weight: nn.Parameter | None
    """None where checkpoints hold the table in a weight format."""
    quantisable: bool = True
    """Whether a format that is made of plain weights may hold its rows."""
    table: Linear | None
    """The linear layer with the same rows, if there is one. It shares a plain weight, and holds any other alone."""

    def __init__(self, w: Weights, vocab_size: int, size: int) -> None:
        super().__init__()
        share = w.shard.split_padded(vocab_size)
        self.name, self.dtype, self.communicator = w.name, w.dtype, w.communicator
        self.vocab_size, self.size, self.start, self.width = vocab_size, size, share[0], share[2]
        self.table = _take_table(w, vocab_size, size, share)
        self.weight = _vocabulary(w, vocab_size, size, share) if self.table is None else None

    def share(self, head: Linear) -> None:
        """Have a layer that was made of the plain weight, such as a tied head's, hold the rows, if it can."""
        plain = isinstance(head, PlainLinear)
        if plain or head.serves_tokens:
            self.table, head.looked_up = head, not plain

    @property
    def looks_up(self) -> bool:
        """Whether all its rows are in the table, and none in a plain weight."""
        return self.table is not None and self.table.looked_up

    def spec(self) -> OpSpec:
        facts = {"cut": self.communicator is not None, "tied": self.table is not None}
        flags = frozenset(name for name, holds in facts.items() if holds)
        format = "plain" if self.table is None else self.table.format
        return OpSpec(self.op, dtype_name(self.dtype), format, {"rows": self.width, "size": self.size}, flags)

    def filled(self) -> None:
        """The table has been filled before, as it is below this module."""
        if self.looks_up and self.weight is not None:
            self.release("weight")

    def reference(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.over_ranks(self.look_up_plainly, ids)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """This rank's rows: ids int64 [T] of rows, counted from its first -> [T, size]."""
        kernel = self.kernel  # its table's may have packed the rows
        return kernel.look_up(ids) if isinstance(kernel, TableKernel) else self.look_up_plainly(ids)

    def look_up_plainly(self, ids: torch.Tensor) -> torch.Tensor:
        """As ``look_up``, of the rows as they were filled: for kernels that leave them so."""
        if self.looks_up:
            assert self.table is not None
            return self.table.look_up(ids)
        assert self.weight is not None
        return functional.embedding(ids, self.weight)

    def over_ranks(self, look_up: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of ids, each from the rank that has it, by ``look_up`` of this rank's rows."""
        if self.communicator is None:
            return look_up(ids)
        local = ids - self.start
        foreign = (local < 0) | (local >= self.width)
        x = look_up(local.masked_fill(foreign, 0))
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

    A weight format that quantises plain weights makes a tied head from the embedding's, which then looks its rows up in
    the head, if that has at least 8 bits, and keeps its own otherwise. Formats of checkpoints leave a tied head plain,
    unless they hold the embedding in the format, too.
    """

    lender: Embed | None = None
    """Whose weight it takes once the model is filled, where the checkpoint has none for it."""

    def __init__(self, w: Weights, vocab_size: int, size: int, *, tied: Embed | None = None) -> None:
        super().__init__()
        self.vocab_size, self.communicator = vocab_size, w.communicator
        self.adapters: HeadAdapters | None = None
        tied = tied if tied is not None and w.tie(tied.name) else None
        self.rows = start, stop, width = w.shard.split_padded(vocab_size)
        if tied is not None:
            self.linear = _tie(w, tied)
        elif vocab_size % w.shard.size == 0:
            self.linear = self.make_linear(w, Part(w.name.rpartition(".")[2], vocab_size, start, stop), size)
        else:
            weight = _vocabulary(w, vocab_size, size, (start, stop, width))
            self.linear = _of_plain_weight(w, _vocabulary_layer(w, size, width), weight)

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
        self.factor = torch.tensor(factor, dtype=embed.dtype).item()

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


def quantise_tables(model: nn.Module, w: Weights) -> None:
    """Have embeddings that share their plain weight with no head hold their rows in the model's format, if it has one
    for them. To be called once all heads are made.
    """
    quantizer = w.declaration.quantizer
    if not isinstance(quantizer, TableQuantizer):
        return
    lenders = {module.lender for module in model.modules() if isinstance(module, Head)}
    for embed in [module for module in model.modules() if isinstance(module, Embed)]:
        if embed.weight is None or embed.table is not None or embed in lenders or not embed.quantisable:
            continue
        layer = LinearLayer(
            embed.name, "head", embed.size, (embed.width,), False, embed.dtype, prefixes=w.declaration.prefixes,
            looked_up=True,
        )  # fmt: skip
        format = quantizer.table(layer)
        if format is not None and format.stored(layer) == (WEIGHT,):
            embed.share(format.build(layer, {"weight": embed.weight}))


def _tie(w: Weights, tied: Embed) -> Linear:
    """The layer of a head over the rows of an embedding."""
    if tied.weight is None:
        assert tied.table is not None
        return tied.table
    layer = _vocabulary_layer(w, tied.size, tied.width, looked_up=True)
    linear = _of_plain_weight(w, layer, tied.weight)
    tied.share(linear)
    return linear


def _take_table(w: Weights, vocab_size: int, size: int, share: tuple[int, int, int]) -> Linear | None:
    """Rows ``[start, stop)`` of embeddings in the model's format, if checkpoints hold those in it; else None."""
    start, stop, width = share
    quantizer = w.declaration.quantizer
    layer = _vocabulary_layer(w, size, width, looked_up=True)
    format = quantizer.table(layer) if isinstance(quantizer, TableQuantizer) else None
    if format is None or format.stored(layer) == (WEIGHT,):  # which may share it with a head that follows
        return None
    place, _, name = w.name.rpartition(".")
    above, part = Weights(w.declaration, place), Part(name, vocab_size, start, stop)
    stored = format.stored(layer)
    tensors = {one.suffix: above.take_stored(one, [part], size, (0, size), width) for one in stored}
    table = format.build(layer, tensors)
    table.looked_up = True
    w.declaration.unread.append((w / "weight").name)
    return table


def _vocabulary_layer(w: Weights, size: int, width: int, *, looked_up: bool = False) -> LinearLayer:
    """A head, or embeddings as a layer, under all names that the checkpoint may have for it."""
    prefixes = w.declaration.prefixes
    return LinearLayer(w.name, "head", size, (width,), False, w.dtype, prefixes=prefixes, looked_up=looked_up)


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
