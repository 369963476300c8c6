"""Memory of a process and all its descendants, as Linux counts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from lsv_bench.figures import Figures

_MIB = 1024
"""Kibibytes in one."""


class Memory(msgspec.Struct, frozen=True):
    """Kibibytes. ``shared`` (shared memory and huge pages) and ``file`` (mapped files) count each page once."""

    anonymous: int = 0
    shared: int = 0
    file: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.anonymous + other.anonymous, self.shared + other.shared, self.file + other.file)


def measure_memory(pid: int, proc: Path = Path("/proc")) -> Figures:
    """RssAnon, shared memory and their sum over a process and its descendants, in MiB; empty where there is no /proc.

    ``mapped_files_mib`` lies in the page cache and can be taken back by the system; it is not part of the sum.
    """
    family = list(_family(pid, proc))
    found = [memory for one in family if (memory := _read_memory(proc / str(one)))]
    if not found:
        return {}
    total = sum(found, Memory())
    return {
        "processes": len(found),
        "anonymous_mib": total.anonymous / _MIB,
        "shared_mib": total.shared / _MIB,
        "memory_mib": (total.anonymous + total.shared) / _MIB,
        "mapped_files_mib": total.file / _MIB,
    }


def _family(pid: int, proc: Path) -> Iterator[int]:
    """A process, then its descendants."""
    children: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        parent = _fields(folder / "status", ("PPid",)).get("PPid")
        if parent is not None:
            children.setdefault(parent, []).append(int(folder.name))
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += children.get(one, [])


def _read_memory(folder: Path) -> Memory | None:
    """None for a process that is gone. Shared pages count by share where the kernel tells, else in full."""
    status = _fields(folder / "status", ("RssAnon", "RssFile", "RssShmem"))
    if "RssAnon" not in status:
        return None
    exact = _fields(folder / "smaps_rollup", ("Pss_File", "Pss_Shmem", "Private_Hugetlb", "Shared_Hugetlb"))
    huge = exact.get("Private_Hugetlb", 0) + exact.get("Shared_Hugetlb", 0)
    return Memory(
        anonymous=status["RssAnon"],
        shared=exact.get("Pss_Shmem", status.get("RssShmem", 0)) + huge,
        file=exact.get("Pss_File", status.get("RssFile", 0)),
    )


def _fields(file: Path, names: Iterable[str]) -> dict[str, int]:
    """The numbers that stand behind these names in a file of /proc; none for a file that can't be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    wanted = frozenset(names)
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) for name, _, rest in pairs if name in wanted and rest.split()}
