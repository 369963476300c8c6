"""How the layers of a model are run: sums that one leaves to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from lsv_runtime.nn.model import Model, run
from lsv_runtime.nn.step import Embeddings, Step, Taps
from lsv_runtime.ops import Bindable, CarryingKernel


class Twice(Bindable):
    """x -> 2 x."""

    op = "layer"

    def reference(self, x: torch.Tensor, step: Any) -> torch.Tensor:
        return x + x


class Carrying(CarryingKernel):
    def __init__(self) -> None:
        self.given: list[bool] = []

    def carry(self, x: torch.Tensor, change: torch.Tensor | None, step: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.given.append(change is not None)
        whole = x if change is None else x + change
        return whole, whole


class Stack(Model):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = lambda ids, step: ids.float()[:, None]
        self.layers = nn.ModuleList(Twice() for _ in range(layers))
        self.norm = nn.Identity()


@pytest.mark.parametrize(
    ("carrying", "given"),
    [
        ("", []),
        ("0", [False]),
        ("01", [False, True]),
        ("02", [False, False]),
        ("012", [False, True, True]),
        ("2", [False]),
    ],
)
def test_a_sum_is_left_to_the_next_kernel_that_takes_it(carrying: str, given: list[bool]) -> None:
    """All others get it whole, and so does what comes after the last layer."""
    model, kernel = Stack(3), Carrying()
    for index in map(int, carrying):
        model.layers[index].kernel = kernel
    nothing: Any = None
    step = Step(torch.tensor([3, 5]), torch.zeros(1, 2), nothing, (), None, torch.tensor([1]))
    assert run(model, step).tolist() == [[40.0]]
    assert kernel.given == given
    # one token's row holds its embedding, and what is added behind two layers
    media = Embeddings.cut(torch.tensor([1]), torch.tensor([[7.0, 1.0, 2.0]]), 2)
    kernel.given.clear()
    assert run(model, replace(step, media=media)).tolist() == [[((7 * 2 + 1) * 2 + 2) * 2.0]]
    assert kernel.given == given
    tapped = replace(step, media=media, taps=Taps((0, 1, 2)))
    assert run(model, tapped).tolist() == [[64.0]]
    assert tapped.taps.states.tolist() == [[3.0, 6.0, 12.0], [7.0, 15.0, 32.0]]
