from __future__ import annotations

from collections.abc import Mapping

import torch

from lsv_models.llama import Llama


class Lookup:
    """An encoder whose items are token ids and whose embeddings are those of the model."""

    parts = 2

    def __init__(self, model: Llama) -> None:
        self._embed = model.embed

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return inputs["ids"]

    def advance(self, state: torch.Tensor, part: int) -> torch.Tensor:
        return self._embed(state, None) if part == self.parts - 1 else state


class Mini(Llama):
    @property
    def encoder(self) -> Lookup:
        return Lookup(self)
