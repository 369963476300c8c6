"""Which files this process has open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def open_files() -> set[tuple[int, str]]:
    """The number and the target of each open file descriptor of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fail if a file is open at the end that was not open at the start.

    The collector may close files of earlier tests meanwhile, so the number of open files proves nothing.
    """
    before = open_files()
    yield
    left = open_files() - before
    assert not left, f"left open: {sorted(left)}"
