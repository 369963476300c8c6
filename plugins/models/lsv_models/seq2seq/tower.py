"""The encoder of a text, as an item beside its decoder's prompt: token ids in, hidden states out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from lsv.request.encoded import IDS
from lsv_runtime.nn.model import Encoder

Begin = Callable[[torch.Tensor], torch.Tensor]
"""ids int64 [T] -> what the first layer reads, [T, hidden]."""
Biases = Callable[[int, torch.device], Iterable[torch.Tensor | None]]
"""What each layer in turn adds to the scores of so many tokens: [heads, T, T] or, for all heads, [T, T]."""


class TextTower(Encoder):
    """Takes ``ids`` int64 [T] of at most ``longest`` tokens; gives [T, hidden].

    A text is one part: it takes no longer than a prompt of as many tokens, which is one step of a decoder-only model.
    ``begin`` belongs to the model around, with whose decoder it may share an embedding. Rows that it puts ``before``
    those of the text are left out at the end.
    """

    parts = 1

    def __init__(
        self,
        begin: Begin,
        layers: Sequence[nn.Module],
        norm: nn.Module | None,
        *,
        width: int,
        longest: int,
        biases: Biases,
        before: int = 0,
    ) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self._longest, self._before = longest, before
        # not as modules: they are those of the model
        self.__dict__["read"], self.__dict__["biases"] = begin, biases

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        read: Begin = self.__dict__["read"]
        return read(inputs[IDS])

    def advance(self, state: torch.Tensor, part: int) -> torch.Tensor:
        make: Biases = self.__dict__["biases"]
        for layer, bias in zip(self.layers, make(len(state), state.device), strict=False):
            state = layer(state, None if bias is None else bias.to(state.dtype))
        state = state[self._before :]
        return state if self.norm is None else self.norm(state)  # type: ignore[no-any-return]

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        return {IDS: torch.zeros(min(most, self._longest), dtype=torch.int64)}
