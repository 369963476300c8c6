"""Linear layers that own their tensor parallelism: ``Column`` splits outputs, ``Row`` splits inputs and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from lsv_runtime.weights.place import Part, Weights
from lsv_runtime.weights.quantizer import LinearLayer, PlainLinear


class Adapters(Protocol):
    """What adds to the results of a linear layer where tokens of the step go through adapters."""

    @property
    def adds(self) -> bool:
        """Whether it adds anything in the step that runs."""
        ...

    def add(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The layer's result y [..., outputs] of x [..., inputs], with what the tokens' adapters add."""
        ...


class Column(nn.Module):
    """A linear layer, or several fused ones, split over the ranks by outputs: x [..., inputs] -> [..., share].

    ``parts`` names the projections and says which outputs this rank computes; ``Column.even`` splits them evenly.
    """

    def __init__(self, w: Weights, parts: Sequence[Part], inputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.linear = w.linear("column", parts, inputs, bias=bias)
        self.adapters: Adapters | None = None

    @classmethod
    def even(
        cls,
        w: Weights,
        names: Sequence[str],
        inputs: int,
        outputs: int,
        *,
        what: str = "outputs",
        bias: bool = False,
        unbiased: Sequence[str] = (),
    ) -> Column:
        """Projections of ``outputs`` features each, split evenly; the ``unbiased`` ones never have a bias.

        Raises ``ConfigError``, which calls the outputs ``what``, when the ranks can't share them evenly.
        """
        start, stop = w.shard.split(outputs, what)
        parts = [Part(name, outputs, start, stop, name not in unbiased) for name in names]
        return cls(w, parts, inputs, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y if self.adapters is None else self.adapters.add(y, x)


def plain_linear(w: Weights, inputs: int, outputs: int) -> PlainLinear:
    """A layer of weights so few and sensitive that no format quantises them, whole on each rank, without a bias."""
    layer = LinearLayer(w.name, "column", inputs, (outputs,), False, w.dtype)
    return PlainLinear(layer, w.take("weight", (outputs, inputs)), None)


class Row(nn.Module):
    """A linear layer split over the ranks by inputs, whose results are summed: x [..., share] -> [..., outputs].

    ``reads`` = (start, stop) are this rank's inputs. ``reduce=False`` leaves the sum to the caller; the first rank's
    result then contains the bias.
    """

    def __init__(
        self,
        w: Weights,
        name: str,
        inputs: int,
        outputs: int,
        *,
        reads: tuple[int, int],
        bias: bool = False,
        reduce: bool = True,
    ) -> None:
        super().__init__()
        self.communicator = w.communicator if reduce else None
        add_after = bias and self.communicator is not None
        part = Part(name, outputs, 0, outputs)
        self.linear = w.linear("row", [part], inputs, reads=reads, bias=bias and not add_after, stored_bias=bias)
        self.bias = (w / name).take("bias", (outputs,)) if add_after else None
        self.adapters: Adapters | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        if self.adapters is not None:
            y = self.adapters.add(y, x)
        if self.communicator is None:
            return y
        y = self.communicator.all_reduce(y)
        return y if self.bias is None else y + self.bias
