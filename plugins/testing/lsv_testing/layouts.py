"""How a conformance suite lays out a batch: flat, or padded with junk in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionBackend, AttentionLayer, BatchLayout, Int32s


@dataclass(frozen=True, slots=True)
class Padded:
    """How batches are laid out for a backend that takes padded ones. Every plan is an earlier one, refilled."""

    junk: float
    """In all places that hold no token."""

    blocks: Callable[[Int32s, Int32s], int] = lambda query, context: 0
    """``BatchLayout.blocks`` of a batch, given ``query`` and ``context``."""

    places: int = 3
    """Places that rows have beyond what the longest needs, except in a step of single tokens."""

    rows: int = 2
    """Padding rows."""


def attend_batch(
    backend: AttentionBackend,
    layer: AttentionLayer,
    cache: Any,
    group: KVGroup,
    tensors: Sequence[torch.Tensor | None],
    batch: BatchLayout,
    layout: Padded | None,
) -> list[torch.Tensor]:
    """Plan and attend, with q, k and v in the flat layout: row by row [count, heads, dim]."""
    plan, (q, k, v), places = _plan(backend, group, tensors, batch, layout)
    assert q is not None
    out = backend.attend(q, k, v if layer.value_dim is None else None, layer, cache, plan)
    shape = (*q.shape[:2], layer.value_dim or layer.head_dim)
    assert out.shape == shape, f"attend returned {tuple(out.shape)}, not {shape}, for queries of {tuple(q.shape)}"
    found = out if places is None else out[places.to(out.device)]
    return list(torch.split(found, batch.query.tolist()))


def write_batch(
    backend: AttentionBackend,
    layer: AttentionLayer,
    cache: Any,
    group: KVGroup,
    tensors: Sequence[torch.Tensor],
    batch: BatchLayout,
    layout: Padded | None,
) -> None:
    """Plan and write, with k and v in the flat layout."""
    plan, (k, v), _ = _plan(backend, group, tensors, batch, layout)
    assert k is not None
    backend.write(k, v if layer.value_dim is None else None, layer, cache, plan)


def _plan(
    backend: AttentionBackend,
    group: KVGroup,
    tensors: Sequence[torch.Tensor | None],
    batch: BatchLayout,
    layout: Padded | None,
) -> tuple[Any, Sequence[torch.Tensor | None], torch.Tensor | None]:
    """The plan, the tensors in the layout, and the places of the tokens in them if they are not contiguous."""
    if layout is None:
        return backend.plan(batch, group), tensors, None
    batch, places = _pad_batch(batch, layout)
    empty = np.ones_like(batch.query)
    unused = replace(batch, query=empty, context=empty, tables=tuple(np.zeros_like(t) for t in batch.tables))
    plan = backend.plan(batch, group, backend.plan(unused, group))
    return plan, [None if x is None else _spread(x, places, batch.tokens, layout.junk) for x in tensors], places


def _pad_batch(batch: BatchLayout, layout: Padded) -> tuple[BatchLayout, torch.Tensor]:
    """The batch in ``layout``, and the places in it of the tokens of the flat layout."""
    longest = int(batch.query.max())
    span = longest + layout.places if longest > 1 else 1
    places = [row * span + token for row, count in enumerate(batch.query.tolist()) for token in range(count)]
    filling = np.ones(layout.rows, np.int32)
    tables = (np.pad(table, ((0, layout.rows), (0, 0))) for table in batch.tables)
    padded = BatchLayout(
        np.concatenate((batch.query, filling)),
        np.concatenate((batch.context, filling)),
        tuple(tables),
        span,
        layout.blocks(batch.query, batch.context),
    )
    return padded, torch.tensor(places)


def _spread(x: torch.Tensor, places: torch.Tensor, tokens: int, junk: float) -> torch.Tensor:
    out = torch.full((tokens, *x.shape[1:]), junk, dtype=x.dtype, device=x.device)
    out[places.to(x.device)] = x
    return out
