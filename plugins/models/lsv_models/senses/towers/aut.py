"""AuT, the audio tower of Qwen3-Omni: convolutions over a second each, 13 embeddings of it, layers over several.

Source: Qwen Team 2025 (Qwen3-Omni), section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.senses.towers.hearing import HearingConfig, HearingLayer, HearingState, HearingTower, waves
from lsv_runtime import products
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.weights.place import Weights

_STEPS = ("conv2d1", "conv2d2", "conv2d3")
_REDUCTION = 2 ** len(_STEPS)
"""Frames of an embedding, and bins of a row that is left of a spectrum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutConfig(HearingConfig):
    """``channels`` of the convolutions; layers attend within ``window`` spans."""

    channels: int
    window: int


class AutLayer(HearingLayer):
    unbiased = ()


class AutStem(nn.Module):
    """Convolutions over time and frequency: spectra [N, bins, frames] -> [N, frames / 8, size], rounded up."""

    def __init__(self, w: Weights, c: AutConfig) -> None:
        super().__init__()
        inputs = (1, c.channels, c.channels)
        self.kernels = nn.ParameterList(
            (w / name).take("weight", (c.channels, n, 3, 3)) for name, n in zip(_STEPS, inputs, strict=True)
        )
        self.biases = nn.ParameterList((w / name).take("bias", (c.channels,)) for name in _STEPS)
        self.out = Column.even(w, ("conv_out",), c.channels * reduced(c.bins), c.size, bias=False)

    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        x = spectra[:, None].to(self.kernels[0].dtype)
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            x = functional.gelu(products.convolve(x, kernel, bias, stride=2, padding=1))
        return self.out(x.permute(0, 3, 1, 2).flatten(2))  # type: ignore[no-any-return]


class AutTower(HearingTower):
    """An embedding for every eight frames, counted anew in each span."""

    c: AutConfig
    layer = AutLayer

    def __init__(self, w: Weights, c: AutConfig) -> None:
        super().__init__(w, c)
        self.stem = AutStem(w, c)
        self.projector = FeedForward(w, ("proj1", "proj2"), (c.size, c.size, c.outputs), c.activation)

    @classmethod
    def read_config(cls, keys: Keys) -> AutConfig:
        keys.skip("conv_chunksize")
        within, frames = keys.count("n_window_infer", 800), 2 * keys.count("n_window", 50)
        if within < frames:
            raise CheckpointError(f"config.json: n_window_infer must be at least {frames} frames, got {within}")
        return AutConfig.read(
            keys, span=50, channels=keys.count("downsample_hidden_size", 480), window=within // frames
        )

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> HearingState:
        features, frames = inputs["features"], 2 * self.c.span
        whole, rest = divmod(features.shape[1], frames)
        full = features[:, : whole * frames].unflatten(1, (whole, frames)).transpose(0, 1)
        # what spans make in between takes memory, so those of a window go at a time
        pieces = [self.stem(part) for part in full.split(self.c.window)] if whole else []
        if rest:
            # silence up to a whole span where there are others, as transformers fills up one of several
            last = functional.pad(features[None, :, whole * frames :], (0, frames - rest if whole else 0))
            pieces.append(self.stem(last)[:, : reduced(rest)])
        each = reduced(frames)
        places = waves(each, self.c.size).to(pieces[0])
        x = torch.cat([(piece + places[: piece.shape[1]]).flatten(0, 1) for piece in pieces])
        windows, rest = divmod(len(x), self.c.window * each)
        spans = ((windows, self.c.window * each), (1, rest))
        return HearingState(x, tuple((count, length) for count, length in spans if count * length))

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        return self.projector(self.norm(x))  # type: ignore[no-any-return]


def reduced(length: int) -> int:
    """What the convolutions leave of so many frames or bins."""
    return -(-length // _REDUCTION)
