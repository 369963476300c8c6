"""How a Gaudi's free memory is split between the KV cache and HPU graphs, in bytes."""

from __future__ import annotations

import msgspec

GIB = 1 << 30
_UNITS = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))


class Split(msgspec.Struct, frozen=True):
    """``margin`` stays free; graphs and cache share the usable rest."""

    usable: int
    graphs: int
    kv: int
    margin: int


def split(free: int, share: float, reserved: float) -> Split:
    """``share`` of what is free is usable, and of that ``reserved`` is for graphs."""
    usable = int(free * share)
    graphs = int(usable * reserved)
    return Split(usable, graphs, usable - graphs, free - usable)


def written(count: int) -> str:
    """Bytes in four digits: 23.75 GiB, 161.9 MiB."""
    for unit, size in _UNITS:
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
