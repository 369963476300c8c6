"""Room for the files in which several processes count together.

prometheus_client maps them into memory. A write to a page that the disk has no room for ends the process (SIGBUS), so
all pages are there before the first is written to.
"""

from __future__ import annotations

import os
from pathlib import Path

from lsv.errors import LsvError

_KINDS = ("counter", "histogram")
"""Kinds of metrics, each of which has a file for each process."""
_SIZE = 1 << 20
"""Bytes of a file: as many as the library gives a new one, several times what the series of a server take."""


def reserve_room(folder: str) -> None:
    """Make this process's files in ``folder``, with all of their pages. Raises ``LsvError`` where there is no room."""
    for kind in _KINDS:
        path = Path(folder) / f"{kind}_{os.getpid()}.db"
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, _SIZE)
        except OSError as cause:
            raise LsvError(
                f"there is no room for metrics in {folder} ({cause.strerror}): an API process needs "
                f"{len(_KINDS) * _SIZE >> 20} MiB there; make room, or serve with one process (--api-server-count 1)"
            ) from None
