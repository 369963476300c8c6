"""Bytes as this platform's users read them in logs."""

from __future__ import annotations

GIB = 1 << 30
_UNITS = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))


def written(count: int) -> str:
    """Bytes in four digits: 23.75 GiB, 161.9 MiB."""
    for unit, size in _UNITS:
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
