"""Attention of single tokens over one list of all blocks of the batch: a gather, two products and a one-hot matrix.

Shapes depend on the numbers of rows and of blocks alone, so one graph serves every batch of a bucket. vllm-gaudi calls
this form of attention flat paged attention.
"""

from __future__ import annotations

import warnings

import torch

from lsv_runtime import products
from lsv_runtime.attention import AttentionLayer

LOWEST = -1e30
"""Stands for the largest score of a row that sees nothing; ``-inf`` minus itself would be NaN."""

warnings.filterwarnings("ignore", r"index_reduce\(\) is in beta", UserWarning)


def attend_blocks(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: torch.Tensor,
    distance: torch.Tensor,
    mapping: torch.Tensor,
    layer: AttentionLayer,
) -> torch.Tensor:
    """q [R, heads, dim] over keys and values [N, block, kv_heads, dim] -> [R, heads, dim].

    Block n belongs to row ``rows[n]`` (int64, R for padding) and begins ``distance[n]`` tokens before that row's query,
    a negative number if nothing of it is seen; mapping float32 [N, R] has a one for each block's row. Rows do not
    affect each other, even if one has NaN.
    """
    token = torch.arange(keys.shape[1], device=q.device)
    apart = distance[:, None] - token
    visible = apart >= 0 if layer.window is None else (apart >= 0) & (apart < layer.window)
    theirs = q.unflatten(1, (layer.kv_heads, -1)).index_select(0, rows.clamp_max(len(q) - 1))
    raw = products.matmul(theirs, keys.permute(0, 2, 3, 1))
    scores = shape_scores(raw, apart[:, None, None], visible[:, None, None], layer)
    peaks = _row_peaks(scores.amax(-1), rows, len(q), layer)
    weights = torch.exp(scores - peaks.index_select(0, rows)[..., None])
    seen = values.masked_fill(~visible[..., None, None], 0.0)  # there may be NaN where nothing was written
    mixed = products.matmul(weights.to(q.dtype), seen.transpose(1, 2)).float()
    sums = block2batch(torch.cat((mixed, weights.sum(-1, keepdim=True)), -1), mapping)
    return divide(sums[..., :-1], sums[..., -1:], peaks[:-1, ..., None], layer).flatten(1, 2).to(q.dtype)


def block2batch(parts: torch.Tensor, mapping: torch.Tensor) -> torch.Tensor:
    """The sums of the blocks [N, ...] of each row: [R, ...].

    Zero times NaN is NaN, so a block that is not finite is left out of the product, and only its own row becomes NaN.
    """
    broken = ~parts.flatten(1).sum(1, keepdim=True).isfinite()
    sound = parts.flatten(1).masked_fill(broken, 0.0)
    sums = mapping.T @ sound
    spoilt = mapping.T @ broken.float() > 0
    return sums.masked_fill(spoilt, torch.nan).unflatten(1, parts.shape[1:])


def shape_scores(
    raw: torch.Tensor, distance: torch.Tensor, visible: torch.Tensor, layer: AttentionLayer
) -> torch.Tensor:
    """Products [X, kv_heads, heads / kv_heads, ..., K] as float32 scores, ``-inf`` for keys that are not seen.

    ``distance`` is query position minus key position; it and ``visible`` are broadcast.
    """
    scores = raw.float() * layer.scale
    if layer.soft_cap is not None:
        scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
    if layer.alibi is not None:
        scores = scores - by_head(layer.alibi, layer, scores.dim()) * distance.abs()
    return scores.masked_fill(~visible, -torch.inf)


def divide(sums: torch.Tensor, weights: torch.Tensor, peaks: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """Weighted sums of values divided by the sum of weights, a sink's included; zero for a query that sees nothing."""
    if layer.sinks is not None:
        weights = weights + torch.exp(by_head(layer.sinks, layer, peaks.dim()) - peaks)
    return sums / weights.clamp_min(torch.finfo(torch.float32).tiny)


def by_head(numbers: torch.Tensor, layer: AttentionLayer, dims: int) -> torch.Tensor:
    """``numbers`` [heads] as float32 that broadcasts over [X, kv_heads, heads / kv_heads, ...] of ``dims`` axes."""
    return numbers.float().view(layer.kv_heads, -1, *(1,) * (dims - 3))


def _row_peaks(peaks: torch.Tensor, rows: torch.Tensor, count: int, layer: AttentionLayer) -> torch.Tensor:
    """The largest score of each row [count + 1, ...] over its blocks; the last is for padding."""
    found = torch.full((count + 1, *peaks.shape[1:]), LOWEST, device=peaks.device)
    found = found.index_reduce_(0, rows, peaks, "amax")
    return found if layer.sinks is None else torch.maximum(found, by_head(layer.sinks, layer, found.dim()))
