"""Routers: which experts each token goes to, and with what weights. All of them choose in float32.

A kernel that routes by itself knows ``Router`` by its exact class; every other one it calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime import gates
from lsv_runtime.weights.place import Piece, Weights
from lsv_runtime.weights.quantizer import LinearLayer, PlainLinear


class Router(nn.Module):
    """Softmax over all experts, then the ``top`` most likely: x [T, hidden] -> weights and int64 ids, both [T, top].

    ``normalise`` rescales the chosen weights to sum to one, which is the same as a softmax over the chosen alone.
    A router is small and sensitive, so it is never quantised. Subclasses choose in other ways.
    """

    exact: ClassVar[bool] = False
    """Whether logits are computed in float32, too, and not in the model's dtype."""

    def __init__(
        self, w: Weights, hidden_size: int, experts: int, top: int, *, normalise: bool, bias: bool = False
    ) -> None:
        super().__init__()
        if not 1 <= top <= experts <= MOST_EXPERTS:
            raise CheckpointError(
                f"config.json: each token goes to {top} of {experts} experts, which must be 1 to {MOST_EXPERTS}"
            )
        dtype = torch.float32 if self.exact else w.dtype
        layer = LinearLayer(w.name, "column", hidden_size, (experts,), bias, dtype)
        weight = _take(w / "weight", (experts, hidden_size), dtype)
        self.logits = PlainLinear(layer, weight, _take(w / "bias", (experts,), dtype) if bias else None)
        self.top, self.normalise = top, normalise

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = self.choose(self.logits(x.float() if self.exact else x).float())
        return weights.to(x.dtype), experts

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [T, experts] -> weights float32 and int64 ids, both [T, top]."""
        weights, experts = torch.softmax(logits, dim=-1).topk(self.top, dim=-1)
        if self.normalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, experts


MOST_EXPERTS = 10_000
"""Far more than any model has; each is built before the first weight is looked for."""
Scores = Literal["softmax", "sigmoid"]


class ExactRouter(Router):
    """One whose logits are computed in float32."""

    exact = True


class ScoredRouter(Router):
    """Experts by score: ``softmax`` over all logits or the ``sigmoid`` of each (DeepSeek-V2, -V3, GLM-4.5, ERNIE 4.5).

    ``correction`` names a learned bias for the choice alone, [experts] or [``correction_rows``, experts]. Of ``groups``
    equal groups only the ``chosen_groups`` best are looked at: by their best expert, or with a correction by the sum of
    their two best. The weights of the chosen are rescaled to sum to one where ``normalise`` says so, and then times
    ``scale``.
    """

    exact = True

    def __init__(
        self,
        w: Weights,
        hidden_size: int,
        experts: int,
        top: int,
        *,
        normalise: bool,
        scores: Scores,
        correction: str | None = None,
        correction_rows: int | None = None,
        groups: int = 1,
        chosen_groups: int = 1,
        scale: float = 1.0,
    ) -> None:
        super().__init__(w, hidden_size, experts, top, normalise=normalise)
        if experts % groups or not 1 <= chosen_groups <= groups or top > chosen_groups * (experts // groups):
            raise CheckpointError(
                f"config.json: {top} of {experts} experts can't come from {chosen_groups} of {groups} equal groups"
            )
        shape = (experts,) if correction_rows is None else (correction_rows, experts)
        self.correction = _take(w / correction, shape, torch.float32) if correction else None
        self.scores, self.groups, self.chosen_groups, self.scale = scores, groups, chosen_groups, scale

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.softmax(logits, dim=-1) if self.scores == "softmax" else gates.sigmoid(logits)
        wanted = scores if self.correction is None else scores + self.correction
        experts = self._within_groups(wanted).topk(self.top, dim=-1).indices
        weights = scores.gather(1, experts)
        if self.normalise:
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-20)
        return weights * self.scale, experts

    def _within_groups(self, wanted: torch.Tensor) -> torch.Tensor:
        """The scores, with those of experts outside of the best groups at minus infinity."""
        if self.chosen_groups == self.groups:
            return wanted
        grouped = wanted.view(len(wanted), self.groups, -1)
        if self.correction is None:
            best = grouped.amax(dim=-1)
        else:
            best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        chosen = torch.zeros_like(best, dtype=torch.bool)
        chosen.scatter_(1, best.topk(self.chosen_groups, dim=-1).indices, True)
        return torch.where(chosen[..., None], grouped, -torch.inf).flatten(1)


class SparseMixer(Router):
    """Two experts, one after the other: each is the likeliest of those left, with its share among the experts whose
    logits are within ``2 * jitter``, relative to their size, of its own (Liu et al. 2024; Phi-3.5-MoE).
    """

    def __init__(self, w: Weights, hidden_size: int, experts: int, top: int, *, jitter: float) -> None:
        super().__init__(w, hidden_size, experts, top, normalise=False)
        if top != 2:
            raise CheckpointError(f"config.json: num_experts_per_tok is {top}, and this router chooses 2")
        self.jitter = jitter

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, weights, experts = logits, [], []
        for _ in range(self.top):
            best, chosen = left.max(dim=-1, keepdim=True)
            far = (best - logits) / logits.abs().clamp(min=best) > 2 * self.jitter
            weights.append(torch.softmax(left.masked_fill(far, -torch.inf), dim=-1).gather(1, chosen))
            experts.append(chosen)
            left = left.scatter(1, chosen, -torch.inf)
        return torch.cat(weights, dim=1), torch.cat(experts, dim=1)


def _take(w: Weights, shape: Sequence[int], dtype: torch.dtype) -> nn.Parameter:
    """All of the tensor at ``w``, cast to ``dtype``."""
    region = tuple(slice(0, size) for size in shape)
    return w.declare(shape, (Piece(w.name, tuple(shape), region, region),), dtype=None if dtype == w.dtype else dtype)
