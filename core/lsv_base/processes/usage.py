"""How much of a memory is in use, of a device's and of the host's, and bytes as users read them in logs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

GIB = 1 << 30
_UNITS = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))
_PROC = Path("/proc")


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


def host_usage(proc: Path = _PROC) -> Usage:
    """The resident memory of this process, and the memory of the machine."""
    return Usage(_read_size(proc / "self" / "status", "VmRSS"), _read_size(proc / "meminfo", "MemTotal"))


def _read_size(file: Path, name: str) -> int:
    """A size in one of the kernel's lists, in bytes; 0 if the list lacks it."""
    lines = (line.partition(":") for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
    return next((int(size.split()[0]) << 10 for found, _, size in lines if found == name), 0)


def written(count: int) -> str:
    """Bytes in four digits: 23.75 GiB, 161.9 MiB."""
    for unit, size in _UNITS:
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
