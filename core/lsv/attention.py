"""The seam to attention: a backend owns the cache's layout, plans once a step and attends once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from lsv.kv.spec import KVGroup, KVKind, KVSpec

if TYPE_CHECKING:
    import torch

    from lsv.platform import Device

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One attention layer on one rank. ``window`` counts the tokens a query sees, itself included;
    where ``causal`` is False it reaches as far to the other side.

    ``soft_cap`` bounds scores by ``cap * tanh(score / cap)``; ``sinks`` [heads] are extra logits that take part
    in the softmax and carry no value; ``alibi`` [heads] are slopes of a penalty on the
    distance to either side. ``group`` and ``place`` say where the layer's
    cache is: which block table, and which position among the layers of that group.
    A layer with a ``source`` attends across: not to tokens but to the row's item, of so many embeddings at most.
    ``key_scale`` and ``value_scale`` are what a cache of 8-bit floats holds K and V in units of.
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None
    alibi: torch.Tensor | None = None
    group: int = 0
    place: int = 0
    key_scale: float = 1.0
    value_scale: float = 1.0
    source: int | None = None

    @property
    def kind(self) -> KVKind:
        """Of what it keeps in the cache."""
        return "cross" if self.source is not None else "full" if self.window is None else "window"


def token_bytes(layer: AttentionLayer, dtype: torch.dtype) -> int:
    """One token's K and V in a cache of ``dtype``; integers have a float32 scale a token and head beside them."""
    scale = 0 if dtype.is_floating_point else 4
    return 2 * layer.kv_heads * (layer.head_dim * dtype.itemsize + scale)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Who is in the step. Row r has ``query[r]`` new tokens, the last of them at position ``context[r] - 1``.

    ``tables[g]`` int32 [rows, blocks] are the block tables of KV group g, padded with 0 behind the last block a
    row has; tokens of a row lie one after another in the flat token dimension, in row order. With a ``span`` the
    layout is padded: every row has so many places, and its tokens lie at the front of them. Rows that only fill a step
    up have one token, at position 0 of the null page. ``blocks`` is what lists of blocks are to be padded to, 0 for no
    more than they need: its unit is that of ``Shape.blocks``.

    For a group of kind "cross" contexts are the lengths of the rows' items, in which tokens have no positions: a row
    may have more of them than its item is long.
    """

    query: Int32s
    context: Int32s
    tables: tuple[Int32s, ...]
    span: int = 0
    blocks: int = 0

    @property
    def tokens(self) -> int:
        """Places in the token dimension, those of padding included."""
        return len(self.query) * self.span if self.span else int(self.query.sum())


class AttentionBackend(Protocol):
    """Attention over a paged cache. ``KVCache`` and ``AttentionPlan`` are the backend's own types."""

    block_sizes: tuple[int, ...]

    def supports(self, layer: AttentionLayer) -> str | None:
        """None, or why this backend can't serve the layer."""
        ...

    def page_bytes(self, spec: KVSpec, block_size: int) -> int:
        """Bytes one layer's block takes; numbers only, nothing is allocated."""
        ...

    def allocate(
        self,
        groups: Sequence[KVGroup],
        layers: Sequence[AttentionLayer],
        pages: int,
        block_size: int,
        dtype: torch.dtype,
        device: Device,
    ) -> Any:
        """A cache of ``pages`` pages that all groups draw from."""
        ...

    def plan(self, batch: BatchLayout, group: KVGroup, into: Any | None = None) -> Any:
        """Everything the layers of one group share in this step.

        ``into`` is an earlier plan of the same shape: its tensors are written to and stay where they are, which a
        captured step relies on. A backend on whose device nothing is captured may ignore it.
        """
        ...

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: Any | None,
        plan: Any,
    ) -> torch.Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads, head_dim].

        Writes k and v to the cache first; ``k=None`` only reads; ``cache=None`` attends within the step alone.
        """
        ...

    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: Any, plan: Any) -> None:
        """Put k and v [T, kv_heads, head_dim] into the cache, as ``attend`` does, and attend to nothing."""
        ...
