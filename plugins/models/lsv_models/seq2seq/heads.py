"""A head that a checkpoint may store, whatever config.json says; otherwise it shares the embedding's weight."""

from __future__ import annotations

from torch import nn

from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.weights.place import Piece, Weights
from lsv_runtime.weights.quantizer import LinearLayer, PlainLinear


class _OwnOrTied(PlainLinear):
    """Stays without a weight of its own where the checkpoint has none."""

    def __init__(self, layer: LinearLayer, weight: nn.Parameter, tied: Embed) -> None:
        super().__init__(layer, weight, None)
        self.__dict__["tied"] = tied  # not a module of this one

    def filled(self) -> None:
        if self.weight.is_meta:
            tied: Embed = self.__dict__["tied"]
            self.weight = tied.weight


class LooseHead(Head):
    """[R, size] -> logits [R, vocab_size]; the weight is the embedding's unless there is one at ``w``."""

    def __init__(self, w: Weights, vocab_size: int, size: int, tied: Embed) -> None:
        nn.Module.__init__(self)
        self.adapters = None
        self.__dict__["lender"] = tied  # not a module of this one
        self.vocab_size, self.communicator = vocab_size, w.communicator
        start, stop, width = w.shard.split_padded(vocab_size)
        columns = slice(0, size)
        rows, place = slice(start, stop), slice(0, stop - start)
        piece = Piece((w / "weight").name, (vocab_size, size), (rows, columns), (place, columns))
        weight = w.declare((width, size), (piece,), padded=width != stop - start, optional=True)
        self.linear = _OwnOrTied(LinearLayer(w.name, "head", size, (width,), False, w.dtype), weight, tied)
