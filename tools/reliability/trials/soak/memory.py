"""How the memory of a server's processes grows."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from statistics import median

from trials.processes import resident
from trials.server import TrialServer

_EVERY = 1.0


class MemoryWatch:
    """Samples resident memory by kind of process, until it is cancelled."""

    def __init__(self, server: TrialServer) -> None:
        self._server = server
        self._samples: dict[str, list[int]] = defaultdict(list)

    async def watch(self) -> None:
        while True:
            sizes: dict[str, int] = defaultdict(int)
            for pid, kind in self._server.processes().items():
                sizes[kind] += resident(pid)
            for kind, size in sizes.items():
                self._samples[kind].append(size)
            await asyncio.sleep(_EVERY)

    def growth(self, kind: str, settled: float) -> float:
        """By how much its median is larger in the last third of the time after ``settled`` seconds than in the first of
        these thirds; 0.01 is 1 %.
        """
        samples = self._samples[kind][round(settled / _EVERY) :] or self._samples[kind]
        third = max(1, len(samples) // 3)
        return median(samples[-third:]) / median(samples[:third]) - 1

    def write(self, file: Path) -> None:
        """All samples, a kind a line: bytes, one a second."""
        file.write_text("".join(f"{json.dumps({kind: found})}\n" for kind, found in self._samples.items()))

    def last(self, kind: str) -> float:
        """MiB."""
        return self._samples[kind][-1] / (1 << 20)
