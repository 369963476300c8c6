"""Finds processes of this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ZYGOTE = "zygote of tests"
"""The whole command line of a zygote, see ``suite.zygote``."""


def children_of(pid: int, module: str = "") -> list[int]:
    """The children of a process, sorted; with ``module``, only those that run it."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended since
            children.update(map(int, task.read_text().split()))
    lines = {child: words_of(child) for child in sorted(children)}
    return [child for child, words in lines.items() if words != [ZYGOTE] and (not module or module in words)]


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
