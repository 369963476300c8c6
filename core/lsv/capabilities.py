"""What a platform can do, declared before anything is built. Defaults are the cautious answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Layout = Literal["flat", "padded"]
"""How a step's tokens lie: one after the other, or each request padded to the longest."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device as seen without opening it."""

    index: int
    name: str
    total_bytes: int
    """The most memory an engine may use."""
    detail: Mapping[str, str] = {}
    """What else its platform found out, for its own use."""


class Refusal(msgspec.Struct, frozen=True):
    """Two features that do not work together here; refused at start."""

    one: str
    """A name of ``lsv.resolve.hardware.active_features``."""
    other: str
    """Another one; the same one again refuses it alone."""
    reason: str


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Core reads this before it builds anything."""

    dtypes: tuple[str, ...]
    """In order of preference, the first is the default. Those after float32 work but are slower than it: a checkpoint
    in one of them runs in the default unless asked otherwise."""
    kv_dtypes: tuple[str, ...] = ("auto",)
    """Types of the KV cache; ``"auto"`` is the model's."""
    kv_aliases: Mapping[str, str] = {}
    """Other names that users of the platform know types of the KV cache by."""
    mixed_batches: bool = False
    """Whether a step may hold prompts and decoding rows together."""
    layout: Layout = "flat"
    in_flight: int = 1
    """Steps that the platform gains by having planned at once."""
    refuses: tuple[Refusal, ...] = ()


class Padding(msgspec.Struct, frozen=True):
    """What prompts of a padded layout are padded to. A step costs what its padded form does, so planners count that."""

    rows: tuple[int, ...]
    """Numbers of prompts in a step, ascending."""
    queries: tuple[int, ...]
    """Tokens of each, ascending."""
