"""MLP speculators in the format of IBM's published checkpoints (``ibm-fms/*-accelerator``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lsv_drafters.checkpoint import Tensors, number
from lsv_drafters.heads import Heads, HeadsDrafter
from lsv_runtime.drafts.speculator import Choose, Place, Speculator
from lsv_runtime.nn.sampling import Choices
from lsv_runtime.weights.checkpoint import CheckpointSource


class SpeculatorHeads(Heads):
    """The weights of all places, as a checkpoint has them: each its own, or one for all."""

    def __init__(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises ``CheckpointError`` for a checkpoint that lacks what its config.json promises."""
        super().__init__()
        self.places, tied = number(config, "n_predict"), bool(config.get("tie_weights", False))
        self.width, self.vocabulary = number(config, "emb_dim"), number(config, "vocab_size")
        inner = int(config.get("inner_dim") or 0) or self.width
        tensors = Tensors(source, dtype, device, "speculator.")
        state = 0.5 ** (0.5 / self.places)
        share = math.sqrt((1 - state**2) * (inner / 2)) / state

        def name(part: str, place: int) -> str:
            return f"{part}.{min(place, int(part == 'proj')) if tied else place}"

        def read(place: int) -> Place:
            return Place(
                tensors.linear(name("proj", place), inner, inner if place else self.width),
                tensors.read(f"{name('emb', place)}.weight", (self.vocabulary, inner), share),
                tensors.read(f"{name('ln', place)}.weight", (inner,)),
                tensors.read(f"{name('ln', place)}.bias", (inner,)),
                tensors.linear(name("head", place), self.vocabulary, inner),
            )

        self.chain = Speculator([read(place) for place in range(self.places)], normed=bool(config.get("scale_input")))

    def draft(self, states: Tensor, tokens: Tensor, counts: Sequence[int], choices: Choices, choose: Choose) -> Tensor:
        return self.chain(states, tokens, counts, choices, choose)  # type: ignore[no-any-return]


class SpeculatorDrafter(HeadsDrafter):
    def make(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> SpeculatorHeads:
        return SpeculatorHeads(config, source, dtype, device)
