"""Opens untrusted files: regular files only, and only up to a maximum size.

``open`` of a FIFO and ``read`` of a device may never return. Symbolic links are followed, because the Hub's cache is
made of them; the target is checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lsv_base.errors import CheckpointError

TEXTS = 256 << 20
"""Default size limit in bytes. Published vocabularies have up to 40 MB."""
WEIGHTS = 1 << 44
"""Size limit in bytes for files of weights."""
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path, most: int = TEXTS) -> int:
    """Open a regular file of at most ``most`` bytes for reading; returns the descriptor.

    Raises ``FileNotFoundError`` if there is no file, ``CheckpointError`` if it is not regular or too large.
    """
    try:
        _check(path, os.stat(path), most)  # opening a device may already have side effects
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise
    except OSError as cause:
        raise CheckpointError(f"can't open {path}: {cause.strerror}") from cause
    try:
        _check(path, os.fstat(descriptor), most)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, most: int = TEXTS) -> bytes:
    """Read a file of at most ``most`` bytes. Raises as ``open_regular``."""
    descriptor = open_regular(path, most)
    try:
        return read_descriptor(path, descriptor, most)
    finally:
        os.close(descriptor)


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a text file; lines end in ``\\n``. Raises ``UnicodeDecodeError``, and as ``open_regular``."""
    text = read_regular(path).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: Path, most: int = TEXTS) -> Path:
    """Check a file before a library opens it; returns the path. Raises as ``open_regular``."""
    os.close(open_regular(path, most))
    return path


def read_descriptor(path: Path, descriptor: int, most: int) -> bytes:
    """Read an open file. Raises ``CheckpointError`` above ``most`` bytes, even if the file grows meanwhile."""
    found = bytearray()
    try:
        while piece := os.pread(descriptor, _PIECE, len(found)):
            found += piece
            if len(found) > most:
                raise _too_large(path, len(found), most)
    except OSError as cause:
        raise CheckpointError(f"can't read {path}: {cause.strerror}") from cause
    return bytes(found)


def _check(path: Path, found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise CheckpointError(f"{path} is {kind}: expected a regular file")
    if found.st_size > most:
        raise _too_large(path, found.st_size, most)


def _too_large(path: Path, size: int, most: int) -> CheckpointError:
    return CheckpointError(f"{path} has at least {size} bytes, over the limit of {most}")
