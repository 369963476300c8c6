"""Finds processes of this machine."""

from __future__ import annotations

from pathlib import Path

ZYGOTE = "zygote of tests"
"""The whole command line of a zygote, see ``suite.zygote``."""


def children_of(pid: int, module: str = "") -> list[int]:
    """The processes that one has started, or those of them that run a module; in the order of their numbers."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            words = words_of(child)
            if words != [ZYGOTE] and (not module or module in words):
                found.append(child)
    return sorted(found)


def words_of(pid: int) -> list[str]:
    """The command line of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Whether a process is there, and more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
