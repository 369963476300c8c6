"""What a layer keeps per token, and which layers share a block table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

KVKind = Literal["full", "window", "latent", "cross", "state"]


class KVSpec(msgspec.Struct, frozen=True):
    """The KV need of one layer on one rank.

    ``token_bytes`` is the size of one token's K and V together; ``window`` the number of most recent
    tokens (itself included) a ``"window"`` layer can see; ``reads`` the layer whose cache is read instead of an own one.
    """

    layer: int
    kind: KVKind
    token_bytes: int
    state_bytes: int = 0
    window: int | None = None
    reads: int | None = None


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table, because they keep and forget the same tokens."""

    index: int
    kind: KVKind
    layers: tuple[int, ...]
    token_bytes: int
    window: int | None = None


def group_specs(specs: Iterable[KVSpec]) -> tuple[KVGroup, ...]:
    """Groups of layers with equal kind, window and size.

    All groups draw pages of equal bytes from one pool, so when the kinds hold different numbers of layers
    the larger ones are cut into groups of the smallest kind's size (the last may be shorter).
    """
    kinds: dict[tuple[KVKind, int | None, int], list[int]] = {}
    for spec in specs:
        if spec.reads is None:
            kinds.setdefault((spec.kind, spec.window, spec.token_bytes), []).append(spec.layer)
    if not kinds:
        return ()
    size = min(len(layers) for layers in kinds.values())
    groups: list[KVGroup] = []
    for (kind, window, token_bytes), layers in kinds.items():
        for first in range(0, len(layers), size):
            groups.append(KVGroup(len(groups), kind, tuple(layers[first : first + size]), token_bytes, window))
    return tuple(groups)
