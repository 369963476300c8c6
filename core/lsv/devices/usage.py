"""How much of a memory is in use, of a device's and of the host's, and bytes as users read them in logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

GIB = 1 << 30
_UNITS = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))
_MEMINFO = Path("/proc/meminfo")


class Usage(NamedTuple):
    """Bytes of a memory."""

    used: int
    total: int

    def since(self, before: Usage, kind: str) -> str:
        """The change of memory in words: ``took 3 GiB of device memory (…)``, or what was freed."""
        taken, used, total = self.used - before.used, written(self.used), written(self.total)
        verb = "took" if taken >= 0 else "freed"
        return f"{verb} {written(abs(taken))} of {kind} memory ({used}/{total} used)"

    def moved_since(self, before: Usage) -> bool:
        """Whether memory use has changed."""
        return self.used != before.used


def host_usage(file: Path = _MEMINFO) -> Usage:
    """The machine's memory, by what the kernel says of it."""
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", file.read_text(encoding="ascii"), re.MULTILINE))
    total = int(sizes["MemTotal"]) << 10
    return Usage(total - (int(sizes["MemAvailable"]) << 10), total)


def written(count: int) -> str:
    """Bytes in four digits: 23.75 GiB, 161.9 MiB."""
    for unit, size in _UNITS:
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
