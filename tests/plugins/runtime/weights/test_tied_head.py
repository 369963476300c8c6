"""A head that shares the embedding's rows: under any format that can look them up, both have one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from lsv_runtime.nn.embed import Embed, Head, quantise_tables
from lsv_runtime.weights.codebook import Codebook, CodedLinear, from_nibbles
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import WEIGHT, Linear, LinearLayer, PlainLinear, Quantizer, StoredTensor
from lsv_testing.tensors import TensorsSource, fill_module, place


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


class Served(Halved):
    """The same, whose rows tokens may look up."""

    @property
    def serves_tokens(self) -> bool:
        return True

    def dequantise(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor | None:
        halves: Any = self.halves
        return halves[rows]  # type: ignore[no-any-return]


class Format:
    name = "test"

    def __init__(self, stored: StoredTensor, make: type[Halved] = Halved) -> None:
        self._stored, self._make = stored, make

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (self._stored,)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return self._make(layer, tensors)


class Tabled(Format):
    """An online format that holds embeddings that are not tied, too."""

    def __init__(self) -> None:
        super().__init__(WEIGHT, Served)

    def table(self, layer: LinearLayer) -> Quantizer | None:
        return self if layer.name == "embed" else None


class Codes(CodedLinear):
    def __init__(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> None:
        super().__init__(layer, Codebook(tuple(map(float, range(16)))), None)
        self.stored = tensors["codes"]

    def filled(self) -> None:
        codes = self.release("stored")
        self.hold(codes, torch.full((len(codes), 1), 0.5))


class Tables:
    """Checkpoints that hold layers and embeddings in four bits."""

    name = "test"

    def stored(self, layer: LinearLayer) -> tuple[StoredTensor, ...]:
        return (StoredTensor("codes", torch.uint8, 0, 1, per_input=2),)

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        return Codes(layer, tensors)

    def table(self, layer: LinearLayer) -> Quantizer | None:
        return self if layer.name == "embed" else None


def tied(quantizer: Quantizer, table: torch.Tensor) -> nn.ModuleDict:
    return declared(place(quantizer=quantizer), table, "embed.weight")


def declared(w: Weights, table: torch.Tensor, name: str) -> nn.ModuleDict:
    """An embedding of 8 numbers and its head, filled from the tensor ``name``."""
    embed = Embed(w / "embed", len(table), 8)
    model = nn.ModuleDict({"embed": embed, "head": Head(w / "head", len(table), 8, tied=embed)})
    source = TensorsSource({name: table})
    return fill_module(model, w, source, source)


def test_embedding_and_head_share_what_an_online_format_makes() -> None:
    table = torch.randn(12, 8)
    model: Any = tied(Format(WEIGHT, Served), table)
    assert model["head"].linear is model["embed"].table
    assert [name for name, one in model.named_parameters() if not one.is_meta] == []
    assert torch.equal(model["embed"](torch.tensor([3, 0]), None), table[[3, 0]] / 2)
    x = torch.randn(3, 8)
    torch.testing.assert_close(model["head"](x, None), x @ table.T / 2)


def test_embedding_and_head_share_what_a_checkpoint_holds() -> None:
    codes = torch.randint(0, 256, (12, 4), dtype=torch.uint8)
    w = place(quantizer=Tables())
    model: Any = declared(w, codes, "embed.codes")
    assert model["head"].linear is model["embed"].table
    assert w.declaration.unread == ["embed.weight"]  # the same as numbers, if a checkpoint also has that
    rows = from_nibbles(codes) * 0.5
    assert torch.equal(model["embed"](torch.tensor([3, 0]), None), rows[[3, 0]])
    torch.testing.assert_close(model["head"](torch.eye(8), None), rows.T)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_table_that_ranks_do_not_share_evenly_ends_in_zeros(rank: int) -> None:
    codes = torch.randint(0, 256, (5, 4), dtype=torch.uint8)
    model: Any = declared(place(quantizer=Tables(), rank=rank, size=2), codes, "embed.codes")
    mine = from_nibbles(codes)[3 * rank : 3 * rank + 3] * 0.5
    assert torch.equal(model["embed"].look_up(torch.arange(3))[: len(mine)], mine)
    assert model["embed"].table.scales.shape[0] == 3
    if rank:
        assert not from_nibbles(model["embed"].table.codes)[2:].any()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_embedding_that_no_head_shares_is_held_in_the_format(rank: int) -> None:
    """Also where ranks do not share its rows evenly."""
    table, w = torch.randn(5, 8), place(quantizer=Tabled(), rank=rank, size=2)
    model: Any = nn.ModuleDict({"embed": Embed(w / "embed", 5, 8), "other": Embed(w / "other", 5, 8)})
    quantise_tables(model, w)
    source = TensorsSource({"embed.weight": table, "other.weight": table})
    fill_module(model, w, source, source)
    mine = torch.zeros(3, 8)
    mine[: 3 - rank] = table[3 * rank :][:3]
    assert torch.equal(model["embed"].look_up(torch.arange(3)), mine / 2)
    assert model["embed"].weight.is_meta
    assert torch.equal(model["other"].weight, mine)


def test_a_head_may_follow_what_is_held_in_the_format_and_share_it() -> None:
    w, table = place(quantizer=Tabled()), torch.randn(12, 8)
    model: Any = declared(w, table, "embed.weight")
    linear = model["embed"].table
    quantise_tables(model, w)
    assert model["embed"].table is model["head"].linear is linear


def test_an_embedding_that_may_not_be_quantised_or_is_lent_stays_plain() -> None:
    w, table = place(quantizer=Tabled()), torch.randn(12, 8)
    embeds = [Embed(w / "embed", 12, 8), Embed(w / "embed", 12, 8)]
    embeds[0].quantisable = False
    head = Head(w / "head", 12, 8)
    head.__dict__["lender"] = embeds[1]
    model = nn.ModuleList((*embeds, head))
    quantise_tables(model, w)
    fill_module(model, w, TensorsSource({"embed.weight": table, "head.weight": table}))
    for embed in embeds:
        assert embed.table is None
        assert embed.weight is not None
        assert torch.equal(embed.weight, table)


def test_an_online_format_that_serves_no_tokens_leaves_the_embedding_its_weight() -> None:
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
