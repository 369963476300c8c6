"""A resampler: learned queries attend once to patches of an image of any size, and become its embeddings.

Sources: Bai et al. 2023 (Qwen-VL), whose resampler it is; positions by sines are those of Yao et al. 2024 (MiniCPM-V).
"""

from __future__ import annotations

import torch
from torch import nn

from lsv_runtime import products
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.place import Weights

_EPS = 1e-6
_THETA = 10000.0


class Resampler(nn.Module):
    """Patches [h * w, width], row by row, and their grid (h, w) -> [queries, size]."""

    def __init__(self, w: Weights, queries: int, width: int, size: int, heads: int) -> None:
        super().__init__()
        self.heads, place = heads, w / "attn"
        self.query = w.take("query", (queries, size))
        self.widen = None if width == size else Column.even(w, ("kv_proj",), width, size)
        self.before_q, self.before_kv, self.after = (
            LayerNorm(w / name, size, _EPS) for name in ("ln_q", "ln_kv", "ln_post")
        )
        # q, k and v one after the other
        self.inner = place.take("in_proj_weight", (3 * size, size))
        self.inner_bias = place.take("in_proj_bias", (3 * size,))
        self.out = Column.even(place, ("out_proj",), size, size, bias=True)
        self.projection = w.take("proj", (size, size))

    def forward(self, patches: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        v = self.before_kv(patches if self.widen is None else self.widen(patches))
        k = v + place_by_sines(*grid, v.shape[1], v.device).to(v.dtype)
        given = (self.before_q(self.query), k, v)
        q, k, v = (
            products.linear(x, weight, bias).unflatten(1, (self.heads, -1)).transpose(0, 1)[None]
            for x, weight, bias in zip(given, self.inner.chunk(3), self.inner_bias.chunk(3), strict=True)
        )
        seen = products.attend(q, k, v)[0].transpose(0, 1).flatten(1)
        return products.matmul(self.after(self.out(seen)), self.projection)  # type: ignore[no-any-return]


def place_by_sines(height: int, width: int, size: int, device: torch.device) -> torch.Tensor:
    """float32 [height * width, size]: sines and cosines of each patch's column, then those of its row."""
    quarter = size // 4
    rates = 1 / _THETA ** (torch.arange(quarter, device=device, dtype=torch.float32) / quarter)
    rows, columns = (
        torch.cat((angles.sin(), angles.cos()), dim=1)
        for angles in (torch.arange(count, device=device)[:, None] * rates for count in (height, width))
    )
    shape = (height, width, -1)
    return torch.cat((columns[None].expand(shape), rows[:, None].expand(shape)), dim=2).flatten(0, 1)
