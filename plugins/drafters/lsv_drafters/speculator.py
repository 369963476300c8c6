"""MLP speculator: each place makes a new state of the one before and of the token that was drafted on it.

Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators" (2024), in the format of
IBM's published checkpoints (``ibm-fms/*-accelerator``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lsv.weights.checkpoint import CheckpointSource
from lsv_drafters.checkpoint import Tensors, number
from lsv_drafters.heads import HeadsDrafter

_EPSILON = 1e-6


class SpeculatorHeads:
    """The weights of all places, as a checkpoint has them: each its own, or one for all."""

    def __init__(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises ``CheckpointError`` for a checkpoint that lacks what its config.json promises."""
        self.places, tied = number(config, "n_predict"), bool(config.get("tie_weights", False))
        self.width = number(config, "emb_dim")
        inner = int(config.get("inner_dim") or 0) or self.width
        self.vocabulary, self._scales = number(config, "vocab_size"), bool(config.get("scale_input", False))
        self._inner = inner
        tensors = Tensors(source, dtype, device, "speculator.")

        def read(part: str, place: int, kind: str, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
            own = min(place, int(part == "proj")) if tied else place
            return tensors.read(f"{part}.{own}.{kind}", shape, scale)

        every = range(self.places)
        state = 0.5 ** (0.5 / self.places)
        share = math.sqrt((1 - state**2) * (inner / 2)) / state
        self._emb = [read("emb", place, "weight", (self.vocabulary, inner), share) for place in every]
        self._head = [read("head", place, "weight", (self.vocabulary, inner)) for place in every]
        self._proj = [read("proj", place, "weight", (inner, inner if place else self.width)) for place in every]
        self._scale = [read("ln", place, "weight", (inner,)) for place in every]
        self._shift = [read("ln", place, "bias", (inner,)) for place in every]

    def begin(self, states: Tensor) -> Tensor:
        states = states.to(self._emb[0].dtype)
        if not self._scales:
            return states
        return functional.rms_norm(states, (self.width,), None, _EPSILON) / math.sqrt(2)

    def go_on(self, states: Tensor, tokens: Tensor, place: int) -> Tensor:
        x = functional.linear(states, self._proj[place]) + functional.embedding(tokens, self._emb[place])
        x = functional.rms_norm(x, (self._inner,), self._scale[place], _EPSILON) + self._shift[place]
        return functional.gelu(x)

    def logits(self, states: Tensor, place: int) -> Tensor:
        return functional.linear(states, self._head[place])


class SpeculatorDrafter(HeadsDrafter):
    def make(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> SpeculatorHeads:
        return SpeculatorHeads(config, source, dtype, device)
