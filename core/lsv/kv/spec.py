"""What a layer keeps in the KV cache, and which layers share a block table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

KVKind = Literal["full", "window", "latent", "cross", "state"]
"""full: all tokens · window: the latest tokens · latent: a compressed form of all tokens · cross: a media item ·
state: a recurrent state.

Seam: "state" is for recurrent layers; ``KVManager`` refuses it so far.
"""


class KVSpec(msgspec.Struct, frozen=True):
    """What one layer keeps on one rank."""

    layer: int
    """The layer's index in the model."""
    kind: KVKind
    token_bytes: int
    """Bytes of one token's K and V together."""
    state_bytes: int = 0
    """Bytes of a request's state in a "state" layer. Seam for recurrent layers: nothing sets or reads it yet."""
    window: int | None = None
    """How many of the latest tokens, itself included, a token in a "window" layer can see."""
    reads: int | None = None
    """The layer whose cache this one reads instead of keeping its own. Seam for shared KV: no model sets it yet."""
    cross_len: int | None = None
    """The most embeddings of a media item that a "cross" layer keeps; it keeps nothing of the request's tokens."""


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

    @property
    def keeps_all(self) -> bool:
        """Whether it keeps every token."""
        return self.window is None and self.cross_len is None


def group_specs(specs: Iterable[KVSpec]) -> tuple[KVGroup, ...]:
    """Groups of layers with equal kind, window, cross_len and size; those of kind "cross" come last, and those of a
    cohort stand together.

    All groups draw pages of equal bytes from one pool, so when the kinds hold different numbers of layers
    the larger ones are cut into groups of the smallest kind's size (the last may be shorter).
    """
    kinds: dict[tuple[KVKind, int | None, int | None, int], list[int]] = {}
    for spec in specs:
        if spec.reads is None:
            kinds.setdefault((spec.kind, spec.window, spec.cross_len, spec.token_bytes), []).append(spec.layer)
    if not kinds:
        return ()
    size = min(len(layers) for layers in kinds.values())
    groups: list[KVGroup] = []
    tokens = [(kind == "cross", window, cross_len) for kind, window, cross_len, _ in kinds]  # what is kept of them
    order = {kind: (kept[0], tokens.index(kept)) for kind, kept in zip(kinds, tokens, strict=True)}
    for kind, window, cross_len, token_bytes in sorted(kinds, key=order.__getitem__):
        layers = kinds[kind, window, cross_len, token_bytes]
        for first in range(0, len(layers), size):
            chosen = tuple(layers[first : first + size])
            groups.append(KVGroup(len(groups), kind, chosen, token_bytes, window, cross_len))
    return tuple(groups)


def find_cohorts(groups: Sequence[KVGroup]) -> tuple[Cohort, ...]:
    """The cohorts of groups in their order; each group is in one."""
    cohorts: list[Cohort] = []
    for (_, window, cross_len), some in itertools.groupby(
        groups, key=lambda group: (group.kind == "cross", group.window, group.cross_len)
    ):
        first, *others = some
        cohorts.append(Cohort(first.index, 1 + len(others), window, cross_len))
    return tuple(cohorts)


def blocks_for(length: int, groups: Sequence[KVGroup], block_size: int, step_tokens: int) -> int:
    """The most blocks that one request of ``length`` tokens holds at a time, in all groups together.

    A windowed group holds the window and the tokens in flight (at most ``step_tokens``), which may begin anywhere in
    their first block. A cross group holds the longest media item, whatever the length.
    """
    return held_blocks(length, find_cohorts(groups), block_size, step_tokens)


def held_blocks(length: int, cohorts: Iterable[Cohort], block_size: int, step_tokens: int) -> int:
    """As ``blocks_for``, of groups in cohorts."""
    full = -(-length // block_size)
    total = 0
    for cohort in cohorts:
        blocks = full if cohort.cross_len is None else -(-cohort.cross_len // block_size)
        if cohort.window is not None:
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
