"""What a layer keeps in the KV cache, and which layers share a block table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

KVKind = Literal["full", "window", "latent", "cross", "state"]
"""full: all tokens · window: the latest tokens · latent: a compressed form of all tokens · cross: a media item ·
state: what a recurrent layer has made of all tokens so far.
"""

STATE_WINDOW = 2
"""A state is a window of two tokens: a token needs the state behind the token before it, and leaves its own."""
_STATE_BLOCKS = 7
"""Blocks that a request holds of a state group at most: what its next step begins with, the last border and the end of
each of its chunks in flight, of which two are reckoned with, and where its prompt parts from others'.
"""


class KVSpec(msgspec.Struct, frozen=True):
    """What one layer keeps on one rank."""

    layer: int
    """The layer's index in the model."""
    kind: KVKind
    token_bytes: int
    """Bytes of one token's K and V together."""
    state_bytes: int = 0
    """Bytes of a request's state in a "state" layer, whose block is one state: that behind the block's last token."""
    window: int | None = None
    """How many of the latest tokens, itself included, a token in a "window" layer can see; ``STATE_WINDOW`` for
    "state".
    """
    chunk: int | None = None
    """Where tokens see those of their chunk alone, its length; a multiple of the block size. ``window`` is as long."""
    reads: int | None = None
    """The layer whose cache this one reads instead of keeping its own."""
    cross_len: int | None = None
    """The most embeddings of a media item that a "cross" layer keeps; it keeps nothing of the request's tokens."""
    optional: bool = False
    """Whether a request may do without the item."""


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table, because they keep and forget the same tokens."""

    index: int
    """The group's number, its place in all lists by group."""
    kind: KVKind
    layers: tuple[int, ...]
    """Indices of its layers in the model."""
    token_bytes: int
    """Bytes of one token's K and V together in one layer."""
    window: int | None = None
    """As in ``KVSpec``."""
    cross_len: int | None = None
    """As in ``KVSpec``."""
    state_bytes: int = 0
    """As in ``KVSpec``."""
    chunk: int | None = None
    """As in ``KVSpec``."""
    optional: bool = False
    """As in ``KVSpec``."""


class Cohort(msgspec.Struct, frozen=True):
    """Groups one after another that keep and forget the same tokens, so their blocks come and go together."""

    first: int
    """The index of the first group."""
    width: int
    """How many groups there are, and so blocks for the same tokens."""
    window: int | None = None
    """As in ``KVSpec``."""
    cross_len: int | None = None
    """As in ``KVSpec``."""
    state: bool = False
    """Whether it holds states: blocks at some borders only."""

    @property
    def keeps_all(self) -> bool:
        """Whether it keeps every token."""
        return self.window is None and self.cross_len is None


def group_specs(specs: Iterable[KVSpec], block_size: int = 1) -> tuple[KVGroup, ...]:
    """Groups of layers with equal kind, window, chunk, cross_len and size; those of kind "cross" come last, and those
    of a cohort stand together.

    All groups draw pages of equal bytes from one pool, so when the kinds hold different numbers of layers
    the larger ones are cut into groups of the smallest kind's size (the last may be shorter). Beside states, whose
    size has nothing to do with that of tokens, it is bytes that are balanced, in blocks of ``block_size`` tokens.
    """
    kinds: dict[KVSpec, list[int]] = {}
    for spec in specs:
        if spec.reads is None:
            kinds.setdefault(msgspec.structs.replace(spec, layer=0), []).append(spec.layer)
    if not kinds:
        return ()
    sizes = _group_sizes(kinds, block_size)
    groups: list[KVGroup] = []
    tokens = [_kept(kind) for kind in kinds]
    order = {kind: (kind.kind == "cross", tokens.index(kept)) for kind, kept in zip(kinds, tokens, strict=True)}
    for kind in sorted(kinds, key=order.__getitem__):
        layers, size = kinds[kind], sizes[kind]
        for first in range(0, len(layers), size):
            chosen = tuple(layers[first : first + size])
            about = (kind.token_bytes, kind.window, kind.cross_len, kind.state_bytes, kind.chunk, kind.optional)
            groups.append(KVGroup(len(groups), kind.kind, chosen, *about))
    return tuple(groups)


def _group_sizes(kinds: Mapping[KVSpec, Sequence[int]], block_size: int) -> dict[KVSpec, int]:
    """How many layers of each kind share a page."""
    if not any(kind.kind == "state" for kind in kinds):
        return dict.fromkeys(kinds, min(len(layers) for layers in kinds.values()))
    blocks = {kind: kind.state_bytes or kind.token_bytes * block_size for kind in kinds}
    page = max(*blocks.values(), min(size * len(kinds[kind]) for kind, size in blocks.items()))
    return {kind: max(1, page // size) for kind, size in blocks.items()}


def _kept(of: KVSpec | KVGroup) -> tuple[bool, bool, int | None, int | None]:
    """What tells of whose blocks come and go together."""
    return of.kind == "cross", of.kind == "state", of.window, of.cross_len


def find_cohorts(groups: Sequence[KVGroup]) -> tuple[Cohort, ...]:
    """The cohorts of groups in their order; each group is in one."""
    cohorts: list[Cohort] = []
    for (_, state, window, cross_len), some in itertools.groupby(groups, key=_kept):
        first, *others = some
        cohorts.append(Cohort(first.index, 1 + len(others), window, cross_len, state))
    return tuple(cohorts)


def blocks_for(length: int, groups: Sequence[KVGroup], block_size: int, step_tokens: int) -> int:
    """The most blocks that one request of ``length`` tokens holds at a time, in all groups together.

    A windowed group holds the window and the tokens in flight (at most ``step_tokens``), which may begin anywhere in
    their first block. A cross group holds the longest media item, whatever the length, and a state group the states
    that steps begin and end with, and checkpoints between these.
    """
    return held_blocks(length, find_cohorts(groups), block_size, step_tokens)


def held_blocks(length: int, cohorts: Iterable[Cohort], block_size: int, step_tokens: int) -> int:
    """As ``blocks_for``, of groups in cohorts."""
    full = -(-length // block_size)
    total = 0
    for cohort in cohorts:
        blocks = full if cohort.cross_len is None else -(-cohort.cross_len // block_size)
        if cohort.state:
            blocks = min(full, _STATE_BLOCKS)
        elif cohort.window is not None:
            blocks = min(full, -(-(cohort.window - 1 + step_tokens) // block_size) + 1)
        total += blocks * cohort.width
    return total


def longest_length(blocks: int, groups: Sequence[KVGroup], block_size: int, step_tokens: int) -> int:
    """The most tokens, in whole blocks, that one request can have with ``blocks`` blocks to itself.

    About 2³¹ where windows (or no cache at all) bound what a request holds.
    """
    cohorts = find_cohorts(groups)
    low, high = 0, (1 << 31) // block_size
    while low < high:
        middle = (low + high + 1) // 2
        fits = held_blocks(middle * block_size, cohorts, block_size, step_tokens) <= blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * block_size
