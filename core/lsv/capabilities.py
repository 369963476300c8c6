"""What a platform can do, declared before anything is built. Defaults are the cautious answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Layout = Literal["flat", "padded"]
"""How a step's tokens lie: one after the other, or every request with as many places as the longest has."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device as seen without opening it. ``total_bytes`` is the memory an engine may at most use."""

    index: int
    name: str
    total_bytes: int
    detail: Mapping[str, str] = {}


class Refusal(msgspec.Struct, frozen=True):
    """Two features that do not work together here; refused at start with the reason."""

    one: str
    other: str
    reason: str


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Core reads this before it builds anything.

    ``dtypes`` are in order of preference, the first is the default; those behind float32 work but are slower than it,
    so that a checkpoint in one of them is run in the default unless asked otherwise. ``kv_aliases`` are other names
    that users of the platform know types of the KV cache by.
    """

    dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...] = ("auto",)
    kv_aliases: Mapping[str, str] = {}
    mixed_batches: bool = False
    layout: Layout = "flat"
    in_flight: int = 1
    pinned_memory: bool = False
    fork_safe: bool = False
    sleep: bool = False
    row_invariant: bool = False
    refuses: tuple[Refusal, ...] = ()


class Padding(msgspec.Struct, frozen=True):
    """What prompts of a padded layout are padded to, ascending: their number in a step, and their tokens.

    A step is as expensive as its padded form, so that is what a planner counts.
    """

    rows: tuple[int, ...]
    queries: tuple[int, ...]
