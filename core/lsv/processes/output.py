"""What processes print: a line for people, and what is kept for the message that says why a process ended."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Self

_log = logging.getLogger(__name__)

_TAIL_BYTES = 1 << 16


def print_line(line: str) -> None:
    """Print a line on standard output, where that takes any: a full disk or a closed pipe must not end a server."""
    try:
        print(line, flush=True)
    except OSError as cause:
        _log.warning("standard output takes nothing (%s): %s", cause.strerror, line)


class Output:
    """A temporary file for what a process prints: a pipe could fill up and stop it. Gone once it is closed."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor to hand to a process."""
        return self._file.fileno()

    def last_lines(self, count: int) -> list[str]:
        """The last lines, at most ``count``, without blank ones at the end; the process may still be writing."""
        descriptor = self.fileno()
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))  # leaves the shared position alone
        return data.decode(errors="replace").strip().splitlines()[-count:]

    def close(self) -> None:
        self._file.close()
