"""The places of an MLP speculator: each makes a new state of the one before and of the token that was drafted on it.

Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators" (2024). A place is so little
to compute that a platform may offer all of them as one kernel, the draw of their tokens with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime.nn.sampling import Choices
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.quantizer import Linear, joint_format

EPSILON = 1e-6
"""Of all norms."""

Choose = Callable[[Tensor, Choices], Tensor]
"""Logits [rows, vocabulary] and how a token of each row is chosen -> int64 [rows]; see
``lsv_runtime.nn.sampling.Choose``.
"""


class Place(nn.Module):
    """The weights of a place, which others may have, too."""

    def __init__(self, projection: Linear, embedding: Tensor, scale: Tensor, shift: Tensor, head: Linear) -> None:
        """embedding [vocabulary, inner]; scale and shift [inner]; all in the dtype of the linear layers."""
        super().__init__()
        self.projection, self.head = projection, head
        self.embedding, self.scale, self.shift = embedding, scale, shift

    def go_on(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The states [rows, inner] behind those of the place before, and the tokens int64 [rows] drawn from these."""
        x = self.projection(states) + functional.embedding(tokens, self.embedding)
        return functional.gelu(functional.rms_norm(x, x.shape[-1:], self.scale, EPSILON) + self.shift)


class Speculator(Bindable):
    """Drafts a token of each place, from the state behind the last token of a sequence."""

    op: ClassVar[str] = "speculator"

    def __init__(self, places: Sequence[Place], *, normed: bool) -> None:
        """``normed`` says whether the model's states are normed once more, and divided by the root of 2."""
        super().__init__()
        self.places: Sequence[Place] = nn.ModuleList(places)  # type: ignore[assignment]
        self.normed = normed

    def spec(self) -> OpSpec:
        first = self.places[0]
        vocabulary, inner = first.embedding.shape
        shape = {"in": first.projection.layer.inputs, "inner": inner, "vocabulary": vocabulary}
        layers = [layer for place in self.places for layer in (place.projection, place.head)]
        return OpSpec(
            self.op, dtype_name(first.embedding.dtype), joint_format(*(layer.format for layer in layers)), shape
        )

    def reference(
        self, states: Tensor, tokens: Tensor, counts: Sequence[int], choices: Choices, choose: Choose
    ) -> Tensor:
        """Drafts int64 [sum of ``counts``], those of a place behind those of the place before; a negative one says why
        there is none, as ``choose`` does.

        ``states`` [rows, width] are the model's, from which ``tokens`` int64 [rows] were sampled. Of ``counts`` a place
        has the number of rows that want its draft: the first ones, and no more than at the place before. ``choices``
        [rows] say how first drafts are chosen; each later one has the next position.
        """
        x, drawn = self.begin(states), list[Tensor]()
        for number, (place, count) in enumerate(zip(self.places, counts, strict=False)):
            x = place.go_on(x[:count], tokens[:count])
            drawn.append(choose(place.head(x), move_on(choices[:count], number)))
            tokens = drawn[-1].clamp(min=0)
        return torch.cat(drawn)

    def begin(self, states: Tensor) -> Tensor:
        """What the first place is given of the model's states [rows, width]."""
        states = states.to(self.places[0].embedding.dtype)
        if not self.normed:
            return states
        return functional.rms_norm(states, states.shape[-1:], None, EPSILON) / math.sqrt(2)


def move_on(choices: Choices, tokens: int) -> Choices:
    """How tokens are chosen so many further on."""
    later = choices.copy()
    later["position"] += np.uint64(tokens)
    return later
