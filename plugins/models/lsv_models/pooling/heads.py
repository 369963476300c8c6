"""The heads of encoders that classify: linear layers over pooled states, or over those of each token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.place import Weights


class Classifier(nn.Module):
    """``out(between(dense(x)))``, or ``out(x)`` alone without a ``dense``: x [R, hidden] -> [R, labels].

    The names are those of the two layers below ``w``.
    """

    def __init__(
        self,
        w: Weights,
        sizes: tuple[int, int],
        *,
        out: str = "classifier",
        dense: str | None = None,
        between: Callable[[torch.Tensor], torch.Tensor] = torch.tanh,
        bias: bool = True,
    ) -> None:
        super().__init__()
        hidden, labels = sizes
        self.dense = None if dense is None else _linear(w, dense, hidden, hidden, bias=bias)
        self.out = _linear(w, out, hidden, labels)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.out.linear.layer.dtype)
        if self.dense is not None:
            x = self.between(self.dense(x))
        return self.out(x)  # type: ignore[no-any-return]


def count_labels(config: Mapping[str, Any]) -> int:
    """As transformers counts: the names, the number, or two."""
    names = config.get("id2label")
    return len(names) if isinstance(names, Mapping) and names else int(config.get("num_labels") or 2)


def _linear(w: Weights, name: str, inputs: int, outputs: int, *, bias: bool = True) -> Column:
    above, _, last = name.rpartition(".")
    return Column.even(w / above if above else w, (last,), inputs, outputs, bias=bias)
