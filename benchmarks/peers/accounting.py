"""Who used the processors while something was measured, as Linux counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
_STEAL = 7
_PARENT, _TIMES = 1, slice(11, 15)


class Usage(NamedTuple):
    """Seconds of processor time: of all processes, of ``ours``, and taken from this virtual machine by its host."""

    wall: float
    busy: float
    ours: float
    stolen: float


def take_usage(roots: Iterable[int]) -> Usage:
    """The totals up to now; ``roots`` and their descendants are ours."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    fields = [int(field) for field in first.split()[1:9]]
    busy = sum(fields) - sum(fields[idle] for idle in _IDLE) - fields[_STEAL]
    return Usage(time.perf_counter(), busy / _TICKS, _count_ours(roots) / _TICKS, fields[_STEAL] / _TICKS)


def cores_between(before: Usage, after: Usage) -> dict[str, float]:
    """Cores in use on average: our own, other processes', and those the host took."""
    wall = after.wall - before.wall
    ours = after.ours - before.ours
    return {
        "own_cores": round(ours / wall, 3),
        "other_cores": round(max(0.0, after.busy - before.busy - ours) / wall, 3),
        "stolen_cores": round((after.stolen - before.stolen) / wall, 3),
    }


def _count_ours(roots: Iterable[int]) -> int:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(folder.name)
        children.setdefault(int(fields[_PARENT]), []).append(pid)
        ticks[pid] = sum(int(field) for field in fields[_TIMES])
    waiting, total = list(roots), 0
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total
