"""Attention as vendors document their ops, in plain torch: what fakes answer with."""

from __future__ import annotations

import torch


def read_pages(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` tokens [length, heads, dim] of the pages ``table`` names in [pages, block, heads, dim]."""
    block = cache.shape[1]
    return cache[table[: -(-length // block)].long()].flatten(0, 1)[:length]


def write_pages(x: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """x [T, kv_heads, dim] to the places ``slots`` of [pages, block, kv_heads, dim]."""
    block = cache.shape[1]
    cache[slots.long() // block, slots.long() % block] = x.to(cache.dtype)


def attend_row(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    *,
    causal: bool,
    window: tuple[int, int] = (-1, -1),
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [Q, heads, dim], the last tokens of k and v [K, kv_heads, dim] -> float32 [Q, heads, dim].

    ``window`` counts tokens to the left and to the right, -1 for all.
    """
    kv_heads, left, right = k.shape[1], *window
    grouped = q.float().reshape(len(q), kv_heads, -1, q.shape[2])
    scores = torch.einsum("qgrd,kgd->grqk", grouped, k.float()) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    distance = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None] - torch.arange(len(k), device=q.device)
    if alibi is not None:
        scores = scores - alibi.float().view(kv_heads, -1, 1, 1) * distance.abs()
    hidden = (distance < 0) if causal else torch.zeros_like(distance, dtype=torch.bool)
    hidden = hidden | (distance > left if left >= 0 else False) | (distance < -right if right >= 0 else False)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        extra = sinks.float().view(kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    seen = v.float().masked_fill(hidden.all(0)[:, None, None], 0.0)
    return torch.einsum("grqk,kgd->qgrd", weights, seen).flatten(1, 2)
