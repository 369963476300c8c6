"""Biases of attention by distance (Raffel et al. 2019): one for each bucket of distances and each head."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import nn

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.attention import Attention, Heads, Sizes
from lsv_runtime.weights.place import Weights


@dataclasses.dataclass(frozen=True, slots=True)
class Buckets:
    """``count`` buckets: each short distance has its own, longer ones share some, and all share from ``far`` on."""

    count: int
    far: int

    def before(self) -> torch.Tensor:
        """Those of keys so many tokens before their query, int64 [far + 1]; the last is that of all further ones."""
        return _find(torch.arange(self.far + 1), self.count, self.far)

    def around(self, length: int, device: torch.device) -> torch.Tensor:
        """Those of all keys of a text for each query in it, where half of the buckets are for later ones: [T, T]."""
        places = torch.arange(length, device=device)
        distance, half = places[None, :] - places[:, None], self.count // 2
        return _find(distance.abs(), half, self.far) + half * (distance > 0)


def _find(distance: torch.Tensor, count: int, far: int) -> torch.Tensor:
    exact = count // 2
    steps = torch.log(distance.float() / exact) / math.log(far / exact) * (count - exact)
    shared = (exact + steps.clamp_min(0).long()).clamp_max(count - 1)
    return torch.where(distance < exact, distance, shared)


def mask_beyond(radius: int, length: int, device: torch.device) -> torch.Tensor:
    """0 where two tokens of a text are at most so far apart, ``-inf`` elsewhere: [T, T]."""
    places = torch.arange(length, device=device)
    beyond = (places[None, :] - places[:, None]).abs() > radius
    return torch.zeros(length, length, device=device).masked_fill(beyond, -torch.inf)


def declare_biases(w: Weights, c: Sizes, buckets: Buckets) -> nn.Parameter:
    """Those of this rank's heads, [buckets, heads], at the place of an attention."""
    first, last = Heads(w, c).queries
    place = w / "relative_attention_bias"
    return place.take("weight", (buckets.count, c.heads), (1, first, last))


class BiasedAttention(Attention):
    """One whose scores have biases by distance; layers may share them."""

    op = "attention.biased"

    def __init__(
        self, w: Weights, c: Sizes, layer: int, *, biases: nn.Parameter, buckets: Buckets, **given: Any
    ) -> None:
        super().__init__(w, c, layer, None, **given)
        self.buckets, self.bias = buckets, biases
        self.keep("by_distance", torch.empty(biases.shape[1], buckets.far + 1, device="meta"))
        self.layer = self._layer  # once more: now there are biases

    @property
    def layer(self) -> AttentionLayer:  # type: ignore[override]
        return self._layer

    @layer.setter
    def layer(self, layer: AttentionLayer) -> None:
        """With the biases as they are now: on meta when declared, and the values once they are filled."""
        self._layer = dataclasses.replace(layer, biases=self._buffers.get("by_distance"))

    def filled(self) -> None:
        by_distance = self.bias[self.buckets.before().to(self.bias.device)].float().T.contiguous()
        self.keep("by_distance", by_distance)
        self.layer = self._layer
