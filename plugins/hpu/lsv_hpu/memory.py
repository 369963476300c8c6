"""What the start takes of memory, and bytes as this platform's users read them in logs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

GIB = 1 << 30
_UNITS = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))
_MEMINFO = Path("/proc/meminfo")


class Usage(NamedTuple):
    """Bytes of a memory."""

    used: int
    total: int

    def since(self, before: Usage, kind: str) -> str:
        """What is taken now and was not before; less than nothing where memory was given back."""
        taken, used, total = map(written, (self.used - before.used, self.used, self.total))
        return f"{taken} of {kind} memory ({used}/{total} used)"


class Stages:
    """Tells of each stage of the start what it took of the ``device``'s memory and of the host's."""

    def __init__(self, device: Callable[[], Usage]) -> None:
        self._device = device
        self._before = device(), host_usage()

    def tell(self, stage: str) -> None:
        """A stage has ended, and the next one begins."""
        now = device, host = self._device(), host_usage()
        log.info(
            "%s took %s and %s", stage, device.since(self._before[0], "device"), host.since(self._before[1], "host")
        )
        self._before = now


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
