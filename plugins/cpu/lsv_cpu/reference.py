"""Paged attention in plain torch, row by row: what runs where there is no native code."""

from __future__ import annotations

import numpy as np
import torch

from lsv_cpu.cache import KVCache
from lsv_cpu.codes import FORMS, decode, encode
from lsv_runtime.attention import AttentionLayer, Int32s, values_of

_QUERIES = 256  # tokens whose scores are held at a time


def attend(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    layer: AttentionLayer,
    cache: KVCache | None,
    starts: Int32s,
    context: Int32s,
    tables: Int32s,
) -> torch.Tensor:
    """``AttentionBackend.attend``; the last three as in ``CpuAttentionPlan``."""
    if cache is not None and k is not None:
        write(k, v, layer, cache, starts, context, tables)
    out = torch.empty(*q.shape[:2], layer.value_dim or layer.head_dim, dtype=q.dtype)
    for request, table in enumerate(tables):
        tokens = slice(int(starts[request]), int(starts[request + 1]))
        length, query = int(context[request]), tokens.stop - tokens.start
        positions = np.arange(length - query, length)
        if cache is None:
            assert k is not None, "without a cache there must be keys"
            keys, values = k[tokens], values_of(k, v, layer)[tokens]
        else:
            keys, values = read(layer, cache, table, length)
        for first in range(0, query, _QUERIES):
            piece = slice(tokens.start + first, min(tokens.start + first + _QUERIES, tokens.stop))
            at = torch.from_numpy(positions[first : first + _QUERIES])
            out[piece] = _attend_densely(q[piece].float(), keys.float(), values.float(), at, layer).to(q.dtype)
    return out


def write(
    k: torch.Tensor,
    v: torch.Tensor | None,
    layer: AttentionLayer,
    cache: KVCache,
    starts: Int32s,
    context: Int32s,
    tables: Int32s,
) -> None:
    """``AttentionBackend.write``; the last three as in ``CpuAttentionPlan``."""
    for request, table in enumerate(tables):
        tokens = slice(int(starts[request]), int(starts[request + 1]))
        length = int(context[request])
        positions = np.arange(length - (tokens.stop - tokens.start), length)
        _write(k[tokens], None if v is None else v[tokens], layer, cache, table, positions)


def _write(
    k: torch.Tensor,
    v: torch.Tensor | None,
    layer: AttentionLayer,
    cache: KVCache,
    table: Int32s,
    positions: np.typing.NDArray[np.int64],
) -> None:
    pages = torch.from_numpy(table[positions // cache.block_size].astype(np.int64))[:, None]
    places = torch.from_numpy(positions % cache.block_size)
    heads = torch.arange(layer.kv_heads)
    key_scales, value_scales = cache.scales(layer)

    def coded(x: torch.Tensor, scale: float, kept: torch.Tensor | None) -> torch.Tensor:
        if cache.dtype not in FORMS:
            return x
        codes, scales = encode(x, cache.dtype, scale)
        if kept is not None and scales is not None:
            kept[pages, heads, places[:, None]] = scales
        return codes

    cells = cache.key_order(layer.head_dim)[places]
    cache.keys(layer)[pages[..., None], heads[:, None], cells[:, None]] = coded(k, layer.key_scale, key_scales)
    if v is None:
        return
    pair, v = cache.pair, coded(v, layer.value_scale, value_scales)
    cache.values(layer)[pages, heads, places[:, None] // pair, :, places[:, None] % pair] = v


def read(layer: AttentionLayer, cache: KVCache, table: Int32s, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [length, kv_heads, head_dim] of one request."""
    pages = torch.from_numpy(table[: -(-length // cache.block_size)].astype(np.int64))
    key_scales, value_scales = cache.scales(layer)

    def real(stored: torch.Tensor, scale: float, scales: torch.Tensor | None) -> torch.Tensor:
        if cache.dtype not in FORMS:
            return stored[:length]
        scales = None if scales is None else scales[pages].transpose(1, 2).flatten(0, 1)
        return decode(stored.contiguous(), cache.dtype, scale, scales)[:length]

    keys = cache.keys(layer)[pages][:, :, cache.key_order(layer.head_dim)].transpose(1, 2).flatten(0, 1)
    keys = real(keys, layer.key_scale, key_scales)
    if layer.value_dim is not None:
        return keys, keys[..., : layer.value_dim]
    values = cache.values(layer)[pages].permute(0, 2, 4, 1, 3).flatten(0, 2)
    return keys, real(values, layer.value_scale, value_scales)


def _attend_densely(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor, layer: AttentionLayer
) -> torch.Tensor:
    """q [Q, heads, dim] at ``positions`` [Q] over k and v [K, kv_heads, dim], all float32."""
    grouped = q.unflatten(1, (layer.kv_heads, -1))
    scores = torch.einsum("qgrd,kgd->grqk", grouped, k) * layer.scale
    if layer.soft_cap:
        scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
    distance = positions[:, None] - torch.arange(len(k))
    if layer.alibi is not None:
        slopes = layer.alibi.float().view(layer.kv_heads, -1, 1, 1)
        scores = scores - slopes * distance.abs()
    if layer.biases is not None:
        biases = layer.biases.float()[:, distance.clamp(0, layer.biases.shape[1] - 1)]
        scores = scores + biases.unflatten(0, (layer.kv_heads, -1))
    visible = _visible(distance, layer)
    scores = scores.masked_fill(~visible, -torch.inf)
    if layer.sinks is not None:
        sinks = layer.sinks.float().view(layer.kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    seen = visible.any(0)  # freed blocks outside a window may hold anything, NaN included
    values = v.masked_fill(~seen[:, None, None], 0.0)
    return torch.einsum("grqk,kgd->qgrd", weights, values).flatten(1, 2)


def _visible(distance: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """``distance`` is query position less key position. Layers that are not causal see both sides."""
    visible = distance >= 0 if layer.causal else torch.ones_like(distance, dtype=torch.bool)
    return visible if layer.window is None else visible & (distance.abs() < layer.window)
