"""Qwen2.5-VL: Qwen2-VL whose tower attends within windows in most layers.

Source: Bai et al. 2025 (Qwen2.5-VL).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.qwen2_vl import Qwen2VL, Qwen2VLEncoder, VisionConfig, VisionState, patch_places
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.encoder import Rotate, Runs, SelfAttention
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.weights.place import Weights

_EPS = 1e-6


class WindowLayer(nn.Module):
    """RMSNorm and a gated MLP instead of Qwen2-VL's."""

    projections: ClassVar[tuple[str, ...]] = ("qkv",)
    """Those of q, k and v, or one for all three."""

    def __init__(self, w: Weights, c: VisionConfig) -> None:
        super().__init__()
        self.before_attn, self.before_mlp = (RMSNorm(w / name, c.size, _EPS) for name in ("norm1", "norm2"))
        self.attn = SelfAttention(w / "attn", self.projections, "proj", c.size, c.heads)
        self.mlp = GatedMLP(w / "mlp", c.size, c.inner, c.activation, bias=True)

    def forward(self, x: torch.Tensor, runs: Runs, rotate: Rotate) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), runs, rotate)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class WindowState(VisionState):
    """With the patches ordered by window; ``order`` is where the merged patches belong."""

    windows: Runs
    order: torch.Tensor


class Qwen25VLEncoder(Qwen2VLEncoder):
    """Layers in ``full`` attend within a frame, the others within windows of ``window`` x ``window`` merged patches."""

    layer: ClassVar[type[WindowLayer]] = WindowLayer

    def __init__(self, w: Weights, c: VisionConfig, window: int, full: frozenset[int]) -> None:
        super().__init__(w, c)
        self.window, self.full = window, full

    @classmethod
    def read(cls, w: Weights, config: Mapping[str, Any], whose: str) -> Self:
        """The tower that a ``vision_config`` describes; ``whose`` names the model. Raises ``CheckpointError``."""
        keys = Keys(config)
        inner = keys.count("intermediate_size", 3420)
        c = VisionConfig.read(keys, size="hidden_size", inner=inner, outputs="out_hidden_size", activation="silu")
        keys.agree("embed_dim", c.size)
        keys.skip("tokens_per_second", "tie_word_embeddings")
        window = keys.count("window_size", 112) // (c.merge * c.patch[-1])
        if not window:
            raise CheckpointError(f"config.json: window_size must be at least {c.merge * c.patch[-1]}")
        full = frozenset(keys.take("fullatt_block_indexes", list, [7, 15, 23, 31]))
        keys.finish(f"{whose}'s vision_config")
        return cls(w, c, window, full)

    def make_layer(self, w: Weights, c: VisionConfig) -> nn.Module:
        return self.layer(w, c)

    def make_norm(self, w: Weights, size: int) -> nn.Module:
        return RMSNorm(w, size, _EPS)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> WindowState:
        frames, height, width = inputs["grid"].tolist()
        merge, unit = self.c.merge, self.c.merge**2
        x = self.embed(inputs)
        of_frame, windows = window_order(height // merge, width // merge, self.window)
        places = patch_places(height, width, merge).view(-1, unit, 2)[of_frame].flatten(0, 1).to(x.device)
        order = (torch.arange(frames)[:, None] * len(of_frame) + of_frame).flatten().to(x.device)
        return WindowState(
            x=x.view(-1, unit, x.shape[1])[order].flatten(0, 1),
            rotate=self.rotate(places, frames),
            frames=((frames, height * width),),
            windows=tuple((count, units * unit) for count, units in windows) * frames,
            order=order,
        )

    def advance(self, state: WindowState, part: int) -> WindowState | torch.Tensor:
        runs = state.frames if part in self.full else state.windows
        x = self.layers[part](state.x, runs, state.rotate)
        if part + 1 < self.parts:
            return dataclasses.replace(state, x=x)
        merged = self.merge(x)
        return torch.empty_like(merged).index_copy_(0, state.order, merged)


def window_order(height: int, width: int, window: int) -> tuple[torch.Tensor, Runs]:
    """A frame's height x width units by window: their indices int64 [units], and how many windows of each size follow.

    Whole windows come first, then those cut off by the right edge, by the lower one, and by both.
    """
    index = torch.arange(height * width).view(height, width)
    order, runs = [], []
    for rows, high in _cuts(height, window):
        for columns, wide in _cuts(width, window):
            area = index[rows, columns]
            blocks = area.reshape(len(area) // high, high, -1, wide).transpose(1, 2)
            order.append(blocks.flatten())
            runs.append((blocks.shape[0] * blocks.shape[1], high * wide))
    return torch.cat(order), tuple(runs)


def _cuts(length: int, window: int) -> Iterator[tuple[slice, int]]:
    """The part of an axis that whole windows fill, and the rest; each with the size of its windows."""
    whole = length // window * window
    if whole:
        yield slice(0, whole), window
    if whole < length:
        yield slice(whole, length), length - whole


class Qwen25VL(Qwen2VL):
    tower: ClassVar[type[Qwen25VLEncoder]] = Qwen25VLEncoder

    def make_encoder(self, w: Weights, keys: Keys, c: DecoderConfig) -> Encoder:
        return self.tower.read(w / "visual", keys.take("vision_config", dict), type(self).__name__)
