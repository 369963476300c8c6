"""The audio tower of Qwen2.5-Omni: Whisper's layers, in which each two seconds attend to themselves alone.

Source: Xu et al. 2025 (Qwen2.5-Omni), section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lsv.nn.encoder import Runs
from lsv.nn.keys import Keys
from lsv.nn.linear import Column
from lsv.nn.model import Encoder
from lsv.nn.norm import LayerNorm
from lsv.weights.place import Weights
from lsv_models.whisper import Stem, TowerLayer

_EPS = 1e-5
_SLOWEST = 10000.0
"""Radians of the fastest wave of positions in one of the slowest."""
# keys that say the same twice, and of what a tower has not
_BESIDE = ("max_source_positions", "num_hidden_layers", "tie_word_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class HearingConfig:
    """The numbers of the tower. A span is ``span`` positions of two frames each."""

    size: int
    inner: int
    outputs: int
    layers: int
    heads: int
    bins: int
    span: int
    activation: str

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> HearingConfig:
        """``audio_config`` of a config.json. Raises ``CheckpointError``."""
        keys = Keys(config)
        keys.skip(*_BESIDE)
        found = cls(
            size=keys.count("d_model", 1280),
            inner=keys.count("encoder_ffn_dim", 5120),
            outputs=keys.count("output_dim", 3584),
            layers=keys.layers("encoder_layers", 32),
            heads=keys.count("encoder_attention_heads", 20),
            bins=keys.count("num_mel_bins", 128),
            span=keys.count("n_window", 100),
            activation=keys.take("activation_function", str, "gelu"),
        )
        keys.finish("Qwen25Omni's audio_config")
        return found


@dataclass(frozen=True, slots=True)
class HearingState:
    """A sound being encoded: x [positions, size], and the spans that it divides into."""

    x: torch.Tensor
    spans: Runs


class HearingTower(Encoder):
    """Takes ``features`` [bins, frames], the log of a mel spectrogram: an embedding for every four frames."""

    def __init__(self, w: Weights, c: HearingConfig) -> None:
        super().__init__()
        self.c, self.parts = c, c.layers
        self.stem = Stem(w, c.bins, c.size)
        shape = (c.size, c.inner), c.heads, c.activation
        self.layers = nn.ModuleList(TowerLayer(w / "layers" / i, *shape) for i in range(c.layers))
        self.norm = LayerNorm(w / "ln_post", c.size, _EPS)
        self.projector = Column.even(w, ("proj",), c.size, c.outputs, bias=True)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> HearingState:
        features, frames = inputs["features"], 2 * self.c.span
        whole = features.shape[1] // frames * frames
        full = features[:, :whole].unflatten(1, (-1, frames)).transpose(0, 1)
        # convolutions do not reach from a span into the next
        pieces = [self.stem(part) for part in (full, features[None, :, whole:]) if part.numel()]
        places = waves(self.c.span, self.c.size).to(pieces[0])
        x = torch.cat([(piece + places[: piece.shape[1]]).flatten(0, 1) for piece in pieces])
        return HearingState(x, tuple((len(piece), piece.shape[1]) for piece in pieces))

    def advance(self, state: HearingState, part: int) -> HearingState | torch.Tensor:
        x = self.layers[part](state.x, state.spans)
        if part + 1 < self.parts:
            return HearingState(x, state.spans)
        pairs = x[: len(x) // 2 * 2].unflatten(0, (-1, 2))
        return self.projector(self.norm(pairs.mean(1)))  # type: ignore[no-any-return]


def waves(count: int, size: int) -> torch.Tensor:
    """Positions as sines, then cosines, of waves from fast to slow (Vaswani et al. 2017): float32 [count, size]."""
    rates = torch.exp(torch.arange(size // 2) * -(math.log(_SLOWEST) / (size // 2 - 1)))
    angles = torch.arange(count)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)
