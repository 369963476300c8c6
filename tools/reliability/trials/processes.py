"""What Linux tells of processes: whose children they are, their memory, their open files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")

_KINDS = {b"lsv.engine.main": "engine", b"lsv_runtime.worker": "rank", b"lsv_multimodal.worker": "media"}
"""What is in a process's command line → what it is."""


def descendants(pid: int) -> dict[int, str]:
    """All processes below one, and what each is."""
    children: dict[int, list[int]] = {}
    for one, parent in _parents():
        children.setdefault(parent, []).append(one)
    found: dict[int, str] = {}
    waiting = [*children.get(pid, ())]
    while waiting:
        one = waiting.pop()
        found[one] = _kind(one)
        waiting += children.get(one, ())
    return found


def resident(pid: int) -> int:
    """Bytes of memory a process has in RAM; 0 for one that is gone."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    return 0


def open_files(pid: int) -> int:
    """How many files, sockets and pipes it has open; 0 for one that is gone."""
    with suppress(OSError):
        return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
    return 0


def alive(pids: dict[int, str]) -> dict[int, str]:
    """Those that still run as what they were."""
    return {pid: kind for pid, kind in pids.items() if resident(pid) and _kind(pid) in (kind, "other")}


def _parents() -> Iterator[tuple[int, int]]:
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])


def _kind(pid: int) -> str:
    with suppress(OSError):
        command = (PROC / str(pid) / "cmdline").read_bytes()
        return next((kind for word, kind in _KINDS.items() if word in command), "other")
    return "other"
