"""Attention to some of the tokens of a row, which the model or a layer's pattern chooses for every query: in plain
torch.

``lengths`` and what is attended to are as a backend gives them (``AttentionBackend.lengths`` and ``gather``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from lsv_runtime.attention import AttentionBackend, AttentionLayer, Int32s

Lengths = tuple[Int32s, Int32s]
Choose = Callable[[slice, slice], torch.Tensor]
"""Which of its row's gathered tokens each of some tokens of the step sees: bool [tokens, gathered], or a choice for
each head [heads, tokens, gathered].
"""
_QUERIES = 256
"""Tokens whose scores are held at a time, fewer where these would be more than ``_SCORES``."""
_SCORES = 1 << 26


def each_row(lengths: Lengths) -> Iterator[tuple[slice, slice]]:
    """The tokens of each row in the step, and those in what is gathered."""
    starts, context = lengths
    end = 0
    for first, last, length in zip(starts[:-1].tolist(), starts[1:].tolist(), context.tolist(), strict=True):
        yield slice(first, last), slice(end, end + length)
        end += length


def see(lengths: Lengths, device: torch.device) -> torch.Tensor:
    """Which of the gathered tokens each token of the step sees: bool [T, C], those of its row up to itself."""
    starts, context = lengths
    seen = torch.zeros(int(starts[-1]), int(context.sum()), dtype=torch.bool, device=device)
    for tokens, gathered in each_row(lengths):
        part = seen[tokens, gathered]
        part.fill_(True).tril_(part.shape[1] - part.shape[0])
    return seen


def attend_chosen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor, lengths: Lengths, layer: AttentionLayer
) -> torch.Tensor:
    """As ``attend_where``; ``chosen`` is bool [T, C]."""
    return attend_where(q, k, v, lambda tokens, gathered: chosen[tokens, gathered], lengths, layer)


def attend_pattern(
    backend: AttentionBackend,
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    layer: AttentionLayer,
    cache: Any | None,
    plan: Any,
) -> torch.Tensor:
    """``AttentionBackend.attend`` to the layer's pattern, for a backend that gathers."""
    pattern, lengths = layer.pattern, backend.lengths(plan)
    assert pattern is not None, "the layer has no pattern"
    keys, values = backend.gather(k, v, layer, cache, plan)
    positions = torch.zeros(len(q), dtype=torch.int64, device=q.device)
    for tokens, gathered in each_row(lengths):
        count, length = tokens.stop - tokens.start, gathered.stop - gathered.start
        positions[tokens] = torch.arange(length - count, length, device=q.device)

    def choose(tokens: slice, gathered: slice) -> torch.Tensor:
        return pattern.see(positions[tokens], gathered.stop - gathered.start, layer.heads)

    return attend_where(q, keys, values, choose, lengths, layer)


def attend_where(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, choose: Choose, lengths: Lengths, layer: AttentionLayer
) -> torch.Tensor:
    """q [T, heads, dim] over the gathered k and v [C, kv_heads, dim], in float32 -> [T, heads, dim].

    Every token sees one at least. Of a layer's ways, scale and sinks are followed.
    """
    assert (layer.soft_cap, layer.alibi, layer.window) == (None,) * 3, "layers that choose are of no other kind"
    out = torch.zeros_like(q)  # zeros for padding
    for tokens, gathered in each_row(lengths):
        keys, values = k[gathered].float(), v[gathered].float()
        held = max(1, min(_QUERIES, _SCORES // (q.shape[1] * max(1, len(keys)))))
        for first in range(tokens.start, tokens.stop, held):
            piece = slice(first, min(first + held, tokens.stop))
            queries = q[piece].float().view(piece.stop - piece.start, k.shape[1], -1, q.shape[-1])
            scores = torch.einsum("qgrd,kgd->grqk", queries, keys) * layer.scale
            chosen = choose(piece, gathered)
            if chosen.ndim == 3:
                chosen = chosen.view(*scores.shape[:2], *chosen.shape[1:])
            scores = scores.masked_fill(~chosen, -torch.inf)
            if layer.sinks is None:
                weights = scores.softmax(-1)
            else:
                sinks = layer.sinks.float().view(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
                weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
            out[piece] = torch.einsum("grqk,kgd->qgrd", weights, values).flatten(1, 2).to(q.dtype)
    return out
