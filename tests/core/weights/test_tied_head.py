"""A head that shares the embedding's rows, under formats that can and can't be made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv.nn.embed import Embed, Head
from lsv.testing.tensors import TensorsSource, fill_module, place
from lsv.weights.quantizer import WEIGHT, Linear, LinearLayer, PlainLinear, Quantizer, StoredTensor


class Halved(Linear):
    """Keeps half of the plain weight, to be told apart."""

    op, format = "linear.halved", "halved"

    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> None:
        super().__init__(layer)
        self.weight = tensors["weight"]

    def filled(self) -> None:
        self.keep("halves", self.release("weight") / 2)

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        halves: Any = self.halves
        return x @ halves.T


class Format:
    name = "test"

    def __init__(self, stored: StoredTensor) -> None:
        self._stored = stored

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (self._stored,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return Halved(layer, tensors)


def tied(quantizer: Quantizer, table: torch.Tensor) -> nn.ModuleDict:
    w = place(quantizer=quantizer)
    embed = Embed(w / "embed", *table.shape)
    model = nn.ModuleDict({"embed": embed, "head": Head(w / "head", *table.shape, tied=embed)})
    source = TensorsSource({"embed.weight": table})
    return fill_module(model, w, source, source)


def test_an_online_format_takes_the_embeddings_weight_and_leaves_it_there() -> None:
    table = torch.randn(12, 8)
    model: Any = tied(Format(WEIGHT), table)
    assert model["head"].linear.format == "halved"
    assert model["head"].linear.weight.is_meta
    assert torch.equal(model["embed"].weight, table)
    x = torch.randn(3, 8)
    torch.testing.assert_close(model["head"].linear(x), x @ table.T / 2)


def test_a_format_with_tensors_of_its_own_leaves_the_head_plain() -> None:
    table = torch.randn(12, 8)
    model: Any = tied(Format(StoredTensor("codes", torch.int8, 0, 1)), table)
    assert isinstance(model["head"].linear, PlainLinear)
    assert model["head"].linear.weight is model["embed"].weight
