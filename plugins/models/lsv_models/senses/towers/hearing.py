"""Towers that hear: Whisper's layers, in which each span of a sound attends to itself alone; that of Qwen2.5-Omni.

Source: Xu et al. 2025 (Qwen2.5-Omni), section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from lsv_models.whisper import Stem, TowerLayer
from lsv_runtime.nn.encoder import Runs
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.place import Weights

_EPS = 1e-5
_SLOWEST = 10000.0
"""Radians of the fastest wave of positions in one of the slowest."""
# keys that say the same twice, and of what a tower has not
_BESIDE = ("max_source_positions", "num_hidden_layers", "tie_word_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class HearingConfig:
    """The numbers of a tower. Convolutions do not reach from ``span`` pairs of frames into the next."""

    size: int
    inner: int
    outputs: int
    layers: int
    heads: int
    bins: int
    span: int
    activation: str

    @classmethod
    def read(cls, keys: Keys, *, span: int, **own: Any) -> Self:
        """Take what all families of the kind have; ``own`` is what one has beside that, ``span`` where keys have none.
        Raises ``CheckpointError``.
        """
        keys.skip(*_BESIDE)
        return cls(
            size=keys.count("d_model", 1280),
            inner=keys.count("encoder_ffn_dim", 5120),
            outputs=keys.count("output_dim", 3584),
            layers=keys.layers("encoder_layers", 32),
            heads=keys.count("encoder_attention_heads", 20),
            bins=keys.count("num_mel_bins", 128),
            span=keys.count("n_window", span),
            activation=keys.take("activation_function", str, "gelu"),
            **own,
        )


@dataclass(frozen=True, slots=True)
class HearingState:
    """A sound being encoded: x [positions, size], and what of it attends to itself alone."""

    x: torch.Tensor
    spans: Runs


class HearingLayer(TowerLayer):
    out = "out_proj"


class HearingTower(Encoder):
    """Takes ``features`` [bins, frames], the log of a mel spectrogram."""

    layer: ClassVar[type[HearingLayer]] = HearingLayer

    def __init__(self, w: Weights, c: HearingConfig) -> None:
        super().__init__()
        self.c, self.parts = c, c.layers
        shape = (c.size, c.inner), c.heads, c.activation
        self.layers = nn.ModuleList(self.layer(w / "layers" / i, *shape) for i in range(c.layers))
        self.norm = LayerNorm(w / "ln_post", c.size, _EPS)

    @classmethod
    def read(cls, w: Weights, config: Mapping[str, Any], whose: str) -> Self:
        """The tower that an ``audio_config`` describes; ``whose`` names the model. Raises ``CheckpointError``."""
        keys = Keys(config)
        c = cls.read_config(keys)
        keys.finish(f"{whose}'s audio_config")
        return cls(w, c)

    @classmethod
    def read_config(cls, keys: Keys) -> Any:
        """The kind of ``HearingConfig`` that such a tower is made by."""
        raise NotImplementedError

    def advance(self, state: HearingState, part: int) -> HearingState | torch.Tensor:
        x = self.layers[part](state.x, state.spans)
        return HearingState(x, state.spans) if part + 1 < self.parts else self.finish(x)

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """What the last layer makes [positions, size] -> embeddings [count, outputs]."""
        raise NotImplementedError


class PairTower(HearingTower):
    """An embedding for every two positions, each of which is two frames."""

    def __init__(self, w: Weights, c: HearingConfig) -> None:
        super().__init__(w, c)
        self.stem = Stem(w, c.bins, c.size)
        self.projector = Column.even(w, ("proj",), c.size, c.outputs, bias=True)

    @classmethod
    def read_config(cls, keys: Keys) -> HearingConfig:
        return HearingConfig.read(keys, span=100)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> HearingState:
        features, frames = inputs["features"], 2 * self.c.span
        whole = features.shape[1] // frames * frames
        full = features[:, :whole].unflatten(1, (-1, frames)).transpose(0, 1)
        pieces = [self.stem(part) for part in (full, features[None, :, whole:]) if part.numel()]
        places = waves(self.c.span, self.c.size).to(pieces[0])
        x = torch.cat([(piece + places[: piece.shape[1]]).flatten(0, 1) for piece in pieces])
        return HearingState(x, tuple((len(piece), piece.shape[1]) for piece in pieces))

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        pairs = x[: len(x) // 2 * 2].unflatten(0, (-1, 2))
        return self.projector(self.norm(pairs.mean(1)))  # type: ignore[no-any-return]


def waves(count: int, size: int) -> torch.Tensor:
    """Positions as sines, then cosines, of waves from fast to slow (Vaswani et al. 2017): float32 [count, size]."""
    rates = torch.exp(torch.arange(size // 2) * -(math.log(_SLOWEST) / (size // 2 - 1)))
    angles = torch.arange(count)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)
