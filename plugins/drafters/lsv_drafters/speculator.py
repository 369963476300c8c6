"""MLP speculator: each place makes a new state of the one before and of the token that was drafted on it.

Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators" (2024), in the format of
IBM's published checkpoints (``ibm-fms/*-accelerator``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lsv.weights.checkpoint import CheckpointSource
from lsv_drafters.checkpoint import Tensors, number
from lsv_drafters.heads import Heads, HeadsDrafter

_EPSILON = 1e-6


class SpeculatorHeads(Heads):
    """The weights of all places, as a checkpoint has them: each its own, or one for all."""

    def __init__(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises ``CheckpointError`` for a checkpoint that lacks what its config.json promises."""
        super().__init__()
        self.places, tied = number(config, "n_predict"), bool(config.get("tie_weights", False))
        self.width = number(config, "emb_dim")
        inner = int(config.get("inner_dim") or 0) or self.width
        self.vocabulary, self._scales = number(config, "vocab_size"), bool(config.get("scale_input", False))
        self._inner = inner
        tensors = Tensors(source, dtype, device, "speculator.")

        def name(part: str, place: int) -> str:
            return f"{part}.{min(place, int(part == 'proj')) if tied else place}"

        every = range(self.places)
        state = 0.5 ** (0.5 / self.places)
        share = math.sqrt((1 - state**2) * (inner / 2)) / state
        self._emb = [tensors.read(f"{name('emb', place)}.weight", (self.vocabulary, inner), share) for place in every]
        widths = [self.width, *[inner] * (self.places - 1)]
        self._proj = nn.ModuleList(tensors.linear(name("proj", place), inner, widths[place]) for place in every)
        self._head = nn.ModuleList(tensors.linear(name("head", place), self.vocabulary, inner) for place in every)
        self._scale = [tensors.read(f"{name('ln', place)}.weight", (inner,)) for place in every]
        self._shift = [tensors.read(f"{name('ln', place)}.bias", (inner,)) for place in every]

    def begin(self, states: Tensor) -> Tensor:
        states = states.to(self._emb[0].dtype)
        if not self._scales:
            return states
        return functional.rms_norm(states, (self.width,), None, _EPSILON) / math.sqrt(2)

    def go_on(self, states: Tensor, tokens: Tensor, place: int) -> Tensor:
        x = self._proj[place](states) + functional.embedding(tokens, self._emb[place])
        x = functional.rms_norm(x, (self._inner,), self._scale[place], _EPSILON) + self._shift[place]
        return functional.gelu(x)

    def logits(self, states: Tensor, place: int) -> Tensor:
        return self._head[place](states)  # type: ignore[no-any-return]


class SpeculatorDrafter(HeadsDrafter):
    def make(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> SpeculatorHeads:
        return SpeculatorHeads(config, source, dtype, device)
