"""What a layer keeps per token, and which layers share a block table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

KVKind = Literal["full", "window", "latent", "cross", "state"]


class KVSpec(msgspec.Struct, frozen=True):
    """The KV need of one layer on one rank.

    ``token_bytes`` is the size of one token's K and V together; ``window`` the number of most recent
    tokens (itself included) a ``"window"`` layer can see; ``reads`` the layer whose cache is read instead of an own.
    A ``"cross"`` layer keeps the embeddings of an item, at most ``cross_len`` of them, and nothing of the tokens.
    """

    layer: int
    kind: KVKind
    token_bytes: int
    state_bytes: int = 0
    window: int | None = None
    reads: int | None = None
    cross_len: int | None = None


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table, because they keep and forget the same tokens."""

    index: int
    kind: KVKind
    layers: tuple[int, ...]
    token_bytes: int
    window: int | None = None
    cross_len: int | None = None


def group_specs(specs: Iterable[KVSpec]) -> tuple[KVGroup, ...]:
    """Groups of layers with equal kind, window, cross_len and size; those of kind "cross" come last.

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
    for kind, window, cross_len, token_bytes in sorted(kinds, key=lambda key: key[0] == "cross"):
        layers = kinds[kind, window, cross_len, token_bytes]
        for first in range(0, len(layers), size):
            chosen = tuple(layers[first : first + size])
            groups.append(KVGroup(len(groups), kind, chosen, token_bytes, window, cross_len))
    return tuple(groups)


def blocks_for(length: int, groups: Iterable[KVGroup], block_size: int, step_tokens: int) -> int:
    """Most blocks that one request of ``length`` tokens holds at a time, in all groups.

    A windowed group holds the window and the tokens in flight (``step_tokens``), which lie anywhere in their
    first block. A cross group holds the longest item, whatever the length.
    """
    full = -(-length // block_size)
    total = 0
    for group in groups:
        blocks = full if group.cross_len is None else -(-group.cross_len // block_size)
        if group.window is not None:
            blocks = min(full, -(-(group.window - 1 + step_tokens) // block_size) + 1)
        total += blocks
    return total


def longest_length(blocks: int, groups: Sequence[KVGroup], block_size: int, step_tokens: int) -> int:
    """The most tokens, a whole number of blocks, that one request may have with ``blocks`` blocks to itself.

    About 2³¹ where windows (or no cache at all) bound what a request holds.
    """
    low, high = 0, (1 << 31) // block_size
    while low < high:
        middle = (low + high + 1) // 2
        fits = blocks_for(middle * block_size, groups, block_size, step_tokens) <= blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * block_size
