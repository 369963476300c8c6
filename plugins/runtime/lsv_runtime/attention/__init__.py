"""The seam to attention: a backend owns the layout of the KV cache, plans once per step and attends once per layer."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from lsv.kv.spec import KVGroup, KVKind, KVSpec
from lsv_runtime.attention.states import StateLayer
from lsv_runtime.attention.tables import TableRows

if TYPE_CHECKING:
    import torch

    from lsv_runtime.attention.pattern import BlockPattern
    from lsv_runtime.devices.device import Device

Int32s = npt.NDArray[np.int32]

Place = tuple[int, int]
"""Where a layer's cache is: the index of its KV group, and its position among the layers of that group."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One attention layer on one rank."""

    index: int
    """Its number among the attention layers of the model."""

    heads: int
    """Query heads of this rank, a multiple of ``kv_heads``."""

    kv_heads: int
    head_dim: int

    scale: float
    """What products of queries and keys are multiplied by."""

    causal: bool = True
    """Whether a query sees no later token than itself."""

    window: int | None = None
    """How many tokens a query sees, itself included; where ``causal`` is False, as many on the other side."""

    soft_cap: float | None = None
    """Bounds scores: ``cap * tanh(score / cap)``."""

    sinks: torch.Tensor | None = None
    """[heads]: one more logit per head, which takes part in the softmax and carries no value."""

    alibi: torch.Tensor | None = None
    """[heads]: slopes of a penalty on the distance between query and key, in either direction."""

    biases: torch.Tensor | None = None
    """[heads, distances]: added to scores, by how many tokens a key is before its query; the last ones are also those
    of all further keys. Causal layers alone have them.
    """

    pattern: BlockPattern | None = None
    """Which of the tokens before it a query sees; None for all. Causal layers alone have one."""

    group: int = 0
    """Index of the KV group, and so of the block table."""

    place: int = 0
    """Position among the layers of the group."""

    key_scale: float = 1.0
    """A cache of 8-bit floats holds K in units of this."""

    value_scale: float = 1.0
    """A cache of 8-bit floats holds V in units of this."""

    source: int | None = None
    """A layer that has one is a cross-attention layer: it attends to the row's media item instead of its tokens, and an
    item has at most this many embeddings.
    """

    optional: bool = False
    """Whether rows may have no item. Such a row has a context of one, on the null page, and the model leaves out what
    it finds there.
    """

    chunk: int | None = None
    """Where a layer attends in chunks of so many tokens: a query sees those before it that are in its chunk. To a
    backend every chunk of a row is a row (``lsv_runtime.attention.chunks``).
    """

    gathered: bool = False
    """Whether the model itself attends, to some of the tokens that ``AttentionBackend.gather`` gives it."""

    value_dim: int | None = None
    """Where values are features of keys, the first so many: the cache holds keys alone, v is None wherever k is given,
    and outputs are as wide. None: values of their own, of ``head_dim`` features.
    """

    mutual: bool = False
    """Whether some tokens see one another, as in a row that is not causal: the model asks for those of a step once
    more, without keys and with plans of their own (``lsv_runtime.attention.spans``).
    """

    reads: int | None = None
    """The index of the earlier layer whose keys and values it attends to: it has none of its own, and the same place in
    the cache.
    """

    @property
    def keeper(self) -> int:
        """The index of the layer whose keys and values these are: its own, unless it reads another's."""
        return self.index if self.reads is None else self.reads

    @property
    def kind(self) -> KVKind:
        """The kind of its KV group."""
        if self.source is not None or self.reach is not None:
            return "window" if self.source is None else "cross"
        return "full" if self.value_dim is None else "latent"

    @property
    def reach(self) -> int | None:
        """The window of its KV group: how many of the latest tokens a token can see, itself included."""
        return self.chunk if self.window is None else self.window


def values_of(k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer) -> torch.Tensor:
    """The values beside or in keys [..., head_dim], as a view."""
    if layer.value_dim is not None:
        return k[..., : layer.value_dim]
    assert v is not None, "these keys are without values"
    return v


def token_bytes(layer: AttentionLayer, dtype: torch.dtype) -> int:
    """Bytes of one token's K and V in a cache of ``dtype``, of K alone where that has the values. Integers have a
    float32 scale per token and head, each of K and V.
    """
    scale, tensors = 0 if dtype.is_floating_point else 4, 2 if layer.value_dim is None else 1
    return tensors * layer.kv_heads * (layer.head_dim * dtype.itemsize + scale)


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The KV cache that a backend is to allocate."""

    groups: Sequence[KVGroup]
    """Each has a block table of its own; all of them draw pages from one pool."""

    layers: Sequence[AttentionLayer]
    """The layers of this rank, with their places in the groups."""

    pages: int
    """Pages of the pool, the null page among them."""

    block_size: int
    """Tokens of a page."""

    dtype: torch.dtype
    """What K and V are stored as."""

    states: Sequence[StateLayer] = ()
    """The recurrent layers of this rank, with their places in groups of kind "state"."""

    def placed(self) -> dict[Place, AttentionLayer]:
        """The attention layers that keep something by place, group by group."""
        found = {(layer.group, layer.place): layer for layer in self.layers if layer.reads is None}
        return {place: found[place] for place in self._places() if place in found}

    def _places(self) -> Iterable[Place]:
        return ((group.index, place) for group in self.groups for place in range(len(group.layers)))

    def _sizes(self) -> dict[Place, int]:
        """Bytes of the block of every layer, group by group."""
        states = {(layer.group, layer.place): layer.state_bytes for layer in self.states}
        layers = self.placed()
        return {
            place: states[place] if place in states else self.block_bytes(layers[place]) for place in self._places()
        }

    def state_pages(self, pieces: Sequence[torch.Tensor]) -> dict[Place, torch.Tensor]:
        """Where in pages that are cut into ``pieces`` uint8 [pages, bytes] the states are: uint8 [pages, bytes]."""
        begins, _ = self.pieces()
        found: dict[Place, torch.Tensor] = {}
        for layer in self.states:
            number, begin = begins[layer.group, layer.place]
            found[layer.group, layer.place] = pieces[number][:, begin : begin + layer.state_bytes]
        return found

    def block_bytes(self, layer: AttentionLayer) -> int:
        """Bytes of a block of this layer, its K and V."""
        return token_bytes(layer, self.dtype) * self.block_size

    def offsets(self) -> tuple[Mapping[Place, int], int]:
        """For pages that hold a block of every layer of the group that owns them, one after another: where in a page
        each layer's block begins, and how large the largest page is. Both in bytes.
        """
        begins: dict[Place, int] = {}
        used = dict.fromkeys((group.index for group in self.groups), 0)
        for (group, place), size in self._sizes().items():
            begins[group, place] = used[group]
            used[group] += size
        return begins, max(used.values(), default=0)

    def pieces(self) -> tuple[Mapping[Place, tuple[int, int]], list[int]]:
        """Such pages, cut wherever that cuts no group's block: the piece of each layer's block and where in it the
        block begins, and how large each piece is. Both in bytes.

        With a tensor for each piece, a cache is allocated in the smallest parts: one a layer, where all layers are of
        one size. Some devices give no more than 4 GiB at a time.
        """
        begins, _ = self.offsets()
        sizes: dict[int, list[int]] = {}
        for (group, _), size in self._sizes().items():
            sizes.setdefault(group, []).append(size)
        borders = cut_pages(sizes.values())
        numbers = {place: bisect(borders, begin) - 1 for place, begin in begins.items()}
        found = {place: (number, begins[place] - borders[number]) for place, number in numbers.items()}
        return found, [end - begin for begin, end in pairwise(borders)]


def cut_pages(groups: Iterable[Iterable[int]]) -> list[int]:
    """Where pages can be cut so that no block is, their beginning and end included, ascending; ``groups`` are the sizes
    of the blocks that each group lays one after another into its pages.
    """
    rows = [[0, *accumulate(sizes)] for sizes in groups]
    blocks = [block for row in rows for block in pairwise(row)]
    cuts = {border for row in rows for border in row} | {0}
    return sorted(cut for cut in cuts if not any(begin < cut < end for begin, end in blocks))


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The rows of a step, and where the tokens of each lie in the token dimension.

    In the flat layout the tokens of the rows follow one another. In the padded one every row has ``span`` places, with
    its tokens in the first of them. Padding rows, which only fill up a step, have one token, at position 0 of the null
    page. In a flat step that is padded to a number of tokens they have those that are left, on the null page from
    position 0 on, and some have none.
    """

    query: Int32s
    """[rows]: new tokens of each row."""

    context: Int32s
    """[rows]: tokens of each row, the new ones included: the last one is at position ``context - 1``. For a group of
    kind "cross" the length of the row's item. Tokens have no positions in an item, so there may be more of them.
    """

    tables: tuple[Int32s | TableRows, ...]
    """[rows, blocks] for each KV group: the block tables, 0 behind a row's last block. Empty without a cache. They are
    arrays, or rows of tables that stay from step to step: ``PagedBackend.table_of`` makes arrays of these.
    """

    span: int = 0
    """Places of each row in the padded layout; 0 for the flat one."""

    blocks: int = 0
    """What lists of blocks are padded to, counted as ``Shape.blocks`` counts; 0 for no padding."""

    draft_pages: Mapping[int, Mapping[int, Sequence[int]]] = field(default_factory=dict)
    """By KV group of kind "state" and by row: pages for the states before each of the drafts that the row ends with.
    The last draft's own state goes where that of a row's last token always goes.
    """

    @property
    def tokens(self) -> int:
        """Places in the token dimension, padding included."""
        return len(self.query) * self.span if self.span else int(self.query.sum())


class AttentionBackend(Protocol):
    """Attention over a paged cache. The types of the cache and of the plan are the backend's own.

    ``lsv_runtime.attention.paged.PagedBackend`` is a base to start from.
    """

    captures_prompts: bool
    """Whether a step in which rows have several tokens can be captured and replayed with rows of other lengths, some of
    them without tokens: what is launched follows from the shapes of tensors alone, and the host's numbers are not
    read. Where this is False, steps of single tokens are captured alone.
    """

    def supports(self, layer: AttentionLayer) -> str | None:
        """None, or why this backend can't serve the layer."""
        ...

    def explain(self, layers: Sequence[AttentionLayer], dtype: torch.dtype) -> str | None:
        """What ``lsv kernels`` adds about layers of a model of this dtype, such as the instructions they run on."""
        ...

    def page_bytes(self, spec: KVSpec, block_size: int) -> int:
        """Bytes of one layer's block. Nothing is allocated for the answer."""
        ...

    def allocate(self, spec: CacheSpec, device: Device) -> Any:
        """The cache. Raises ``ConfigError`` for a dtype that the backend has no cache of.

        Comes before the first plan, and again when it is known how large the cache may be, and whenever the engine
        sleeps or wakes up; from then on the cache before is not used any more, and the backend lets go of it.
        """
        ...

    def state_pages(self, cache: Any) -> Mapping[Place, torch.Tensor]:
        """Where recurrent layers have their states in a cache: uint8 [pages, bytes of a state] by place."""
        ...

    def memory(self, cache: Any) -> Sequence[torch.Tensor]:
        """All that a cache keeps, page by page, for copies of blocks: uint8 [pages, bytes] each, views of the cache."""
        ...

    def plan(self, batch: BatchLayout, group: KVGroup, into: Any | None = None) -> Any:
        """What the layers of one group share in this step.

        ``into`` is an earlier plan of the same shape. Its tensors are overwritten in place, which a captured step
        relies on; a backend on whose device nothing is captured may ignore it.
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
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads, head_dim], or [T, heads, value_dim] and
        v None for a layer whose values are features of its keys.

        Writes k and v to the cache first. With ``k=None`` it only reads; with ``cache=None`` tokens attend to the
        tokens of their row in this step alone.
        """
        ...

    def write(self, k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: Any, plan: Any) -> None:
        """Write k and v [T, kv_heads, head_dim] to the cache, as ``attend`` does, without attending."""
        ...

    def lengths(self, plan: Any) -> tuple[Int32s, Int32s]:
        """Where the tokens of each row begin in the step and where the last one's end [rows + 1], and how many tokens
        each row has, those of earlier steps included [rows]. Both are on the host.
        """
        ...

    def gather(
        self, k: torch.Tensor | None, v: torch.Tensor | None, layer: AttentionLayer, cache: Any | None, plan: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v as ``attend`` does and give those of all tokens of all rows, row after row, in the dtype of k:
        [sum of the rows' lengths, kv_heads, head_dim] each, V as narrow as it is. Without them it only reads, in the
        cache's dtype. For layers that are ``gathered``.
        """
        ...
