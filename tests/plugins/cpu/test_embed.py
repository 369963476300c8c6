"""The embedding of a tied head: rows from its panels, kept once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lsv.nn.embed import Embed, Head
from lsv.offers import KernelOffer, load_object
from lsv.ops import Kernel, bind
from lsv.platform import Device
from lsv.testing.ops import check_kernel
from lsv.testing.tensors import TensorsSource, place
from lsv.weights.fill import Filler
from lsv.weights.place import Weights
from lsv_cpu import plugin

VOCABULARY, SIZE = 77, 40
OFFERS = {offer.op: offer for offer in plugin.lsv_kernels()}


def tied(w: Weights) -> tuple[Embed, Head]:
    embed = Embed(w / "e", VOCABULARY, SIZE)
    return embed, Head(w / "h", VOCABULARY, SIZE, tied=embed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_are_those_of_the_table(dtype: torch.dtype, device: Device) -> None:
    ids = [torch.tensor(some) for some in ([3], [0, VOCABULARY - 1, 5, 5], list(range(VOCABULARY)))]
    inputs = [(some, None) for some in (*ids, torch.arange(60)[::2])]
    check_kernel(OFFERS["embed"], lambda w: tied(w)[0], inputs, dtype=dtype, tolerance=0.0)


def bound(w: Weights, offers: list[KernelOffer]) -> torch.nn.ModuleList:
    model = torch.nn.ModuleList(tied(w))
    bind(model, offers, "cpu", lambda offer: load_object(offer.load))
    return model


def test_embedding_and_head_share_one_copy_also_when_filled_again(device: Device) -> None:
    w = place()
    model: Any = bound(w, list(OFFERS.values()))
    filler = Filler(model, w.declaration.slots)
    ids, x = torch.tensor([1, 70, 8]), torch.randn(2, SIZE)
    for table in (torch.randn(VOCABULARY, SIZE), torch.randn(VOCABULARY, SIZE)):
        filler.fill(TensorsSource({"e.weight": table}), w.device)
        assert all(parameter.is_meta for parameter in model.parameters())
        assert torch.equal(model[0](ids, None), table[ids])
        torch.testing.assert_close(model[1](x, None), x @ table.T)


class Plain(Kernel):
    """A kernel for the head that leaves its weight where it is."""

    def __init__(self, module: Any, spec: Any) -> None:
        self.forward = module.reference


def test_rows_stay_where_the_head_has_another_kernel(device: Device) -> None:
    w = place()
    model: Any = bound(w, [OFFERS["embed"], KernelOffer("linear", "cpu", f"{__name__}:Plain", lambda spec: None)])
    table = torch.randn(VOCABULARY, SIZE)
    Filler(model, w.declaration.slots).fill(TensorsSource({"e.weight": table}), w.device)
    assert torch.equal(model[0](torch.tensor([4]), None), table[4:5])


def test_an_embedding_with_rows_of_its_own_is_left_alone() -> None:
    why = OFFERS["embed"].supports(Embed(place() / "e", 6, 4).spec())
    assert why == "has rows of its own"
