"""The thread team of native code: one thread for each core that this process may use."""

from __future__ import annotations

import ctypes
from collections.abc import Set

from lsv_base.errors import ConfigError
from lsv_cpu import native


def set_team(threads: int, cores: Set[int] | None) -> bool:
    """Make a team of ``threads``. If ``cores`` are given, each member but the caller is pinned to one of them.

    False if there is no native code to run on it. Raises ``ConfigError`` where the system refuses so many threads.
    """
    library = native.library()
    if library is None:
        return False
    places = sorted(cores or ())[1:threads]
    pinned = (ctypes.c_int32 * len(places))(*places) if len(places) == threads - 1 > 0 else None
    status = library.lsv_set_team(threads, pinned)
    if status:
        raise ConfigError(f"cpu.threads={threads} is not possible: {native.refusal(status)}", param="cpu.threads")
    return True
