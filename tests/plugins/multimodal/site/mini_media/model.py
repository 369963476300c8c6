from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lsv_models.llama import Llama
from lsv_runtime.nn.model import Encoder


class Lookup(Encoder):
    """An encoder whose items are token ids and whose embeddings are those of the model."""

    parts = 2

    def __init__(self, model: Llama) -> None:
        super().__init__()
        self._embed = lambda ids: model.embed(ids, None)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return inputs["ids"]

    def advance(self, state: torch.Tensor, part: int) -> torch.Tensor:
        return self._embed(state) if part == self.parts - 1 else state


class Mini(Llama):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.encoder = Lookup(self)
