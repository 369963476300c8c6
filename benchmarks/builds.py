"""Builds of the native kernels that are measured in turns with this checkout's own."""

from __future__ import annotations

import ctypes
from pathlib import Path

from lsv_cpu import native

PAUSE = 0.005
"""Seconds in which the team of the build measured before goes to sleep."""


def load(path: Path, threads: int) -> ctypes.CDLL:
    """The library at ``path`` with a team of its own. An older one may lack functions."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in native.SIGNATURES.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    library.lsv_set_team(threads, None)
    return library
