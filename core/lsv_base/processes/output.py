"""Output of processes: lines for people, and captured output for messages about failed processes."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Self

_log = logging.getLogger(__name__)

_TAIL_BYTES = 1 << 16


def print_line(line: str) -> None:
    """Print a line on standard output. A full disk or a closed pipe logs a warning and does not end the server."""
    try:
        print(line, flush=True)
    except OSError as cause:
        _log.warning("can't write to standard output (%s): %s", cause.strerror, line)


class Output:
    """A temporary file for the output of a process. Unlike a pipe it can't block the process; ``close`` deletes it."""

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
        """The last lines, at most ``count``, without trailing blank lines. The process may still be writing."""
        descriptor = self.fileno()
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))  # leaves the shared position alone
        return data.decode(errors="replace").strip().splitlines()[-count:]

    def close(self) -> None:
        self._file.close()
