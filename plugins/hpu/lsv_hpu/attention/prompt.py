"""Attention of prompts [rows, span]: Intel's fused kernel if it has what a layer asks for, else plain algebra.

Queries are computed in pieces of a fixed size, so that masks and scores of long prompts stay small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lsv_hpu.attention.flat import LOWEST, by_head, divide, shape_scores
from lsv_hpu.vendor_ops import VendorOps
from lsv_runtime import products
from lsv_runtime.attention import AttentionLayer

_QUERIES = 1024


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query may see."""

    starts: torch.Tensor
    """int64 [R]: the queries of row r are at positions ``starts[r]``, ``starts[r] + 1`` …"""

    keys: torch.Tensor
    """int64 [R, K]: positions of the keys of each row, -1 where there is none."""

    def of(self, first: int, last: int, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
        """Distances int64 [R, 1, 1, last - first, K] of queries to their keys, and which of the keys are seen."""
        queries = self.starts[:, None] + torch.arange(first, last, device=self.starts.device)
        distance = queries[:, :, None] - self.keys[:, None]
        visible = (self.keys >= 0)[:, None].expand_as(distance)
        if layer.causal:
            visible = visible & (distance >= 0)
        if layer.window is not None:
            visible = visible & (distance.abs() < layer.window)
        return distance[:, None, None], visible[:, None, None]


def attend_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight, layer: AttentionLayer, ops: VendorOps
) -> torch.Tensor:
    """q [R, S, heads, dim] over k and v [R, K, kv_heads, dim], zeros where there is no key -> [R, S, heads, dim]."""
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    found = []
    for first in range(0, q.shape[1], _QUERIES):
        piece = q[:, first : first + _QUERIES].transpose(1, 2)
        _, visible = sight.of(first, first + piece.shape[2], layer)
        bias = torch.zeros(visible.shape, dtype=q.dtype, device=q.device)
        bias = bias.masked_fill(~visible, torch.finfo(q.dtype).min)[:, 0]
        found.append(ops.attend(piece, keys, values, layer.scale, bias=bias).transpose(1, 2))
    return torch.cat(found, 1)


def attend_causally(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, layer: AttentionLayer, ops: VendorOps
) -> torch.Tensor:
    """Prompts without context and without a window: as ``attend_fused``, row r has ``lengths[r]`` (int32) tokens."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return ops.attend(q, k, v, layer.scale, lengths=lengths).transpose(1, 2)


def attend_plainly(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight, layer: AttentionLayer
) -> torch.Tensor:
    """As ``attend_fused``, for every layer."""
    keys, values = k.permute(0, 2, 3, 1)[:, :, None], v.transpose(1, 2)[:, :, None]
    found = []
    for first in range(0, q.shape[1], _QUERIES):
        piece = q[:, first : first + _QUERIES].unflatten(2, (layer.kv_heads, -1)).permute(0, 2, 3, 1, 4)
        distance, visible = sight.of(first, first + piece.shape[3], layer)
        scores = shape_scores(products.matmul(piece, keys), distance, visible, layer)
        peaks = scores.amax(-1, keepdim=True).clamp_min(LOWEST)
        if layer.sinks is not None:
            peaks = torch.maximum(peaks, by_head(layer.sinks, layer, peaks.dim()))
        weights = torch.exp(scores - peaks)
        mixed = products.matmul(weights.to(q.dtype), values).float()
        out = divide(mixed, weights.sum(-1, keepdim=True), peaks, layer)
        found.append(out.permute(0, 3, 1, 2, 4).flatten(2, 3).to(q.dtype))
    return torch.cat(found, 1)
