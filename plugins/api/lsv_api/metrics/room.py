"""Reserves disk space for the files in which several processes share metrics.

prometheus_client maps these files into memory. Writing to a page without disk space kills the process (SIGBUS), so all
pages are allocated before the first write.
"""

from __future__ import annotations

import os
from pathlib import Path

from lsv_base.errors import LsvError

_KINDS = ("counter", "histogram")
"""Kinds of metrics. Each process has a file for each kind."""
_SIZE = 1 << 20
"""Bytes of a file: the library's initial size, several times what a server's series need."""


def reserve_room(folder: str) -> None:
    """Create this process's files in ``folder``, fully allocated. Raises ``LsvError`` if the disk is full."""
    for kind in _KINDS:
        path = Path(folder) / f"{kind}_{os.getpid()}.db"
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, _SIZE)
        except OSError as cause:
            raise LsvError(
                f"no room for metrics in {folder} ({cause.strerror}): each API process needs "
                f"{len(_KINDS) * _SIZE >> 20} MiB there; free some space, or use one process (--api-server-count 1)"
            ) from None
