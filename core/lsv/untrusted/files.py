"""Opening files that others may have put there: regular files only, and none larger than it may be.

A FIFO would never end an ``open``, a device would never end a ``read``. Links are followed, since the Hub's cache is
made of them; the file they lead to is checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lsv.errors import CheckpointError

TEXTS = 256 << 20
"""Bytes of the largest file that is read whole: published vocabularies have up to 40 MB."""
WEIGHTS = 1 << 44
"""Bytes of the largest file of weights."""
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path, most: int = TEXTS) -> int:
    """A descriptor of a regular file of at most ``most`` bytes, for reading.

    Raises ``FileNotFoundError`` where there is none, and ``CheckpointError`` for any other file.
    """
    try:
        _check(path, os.stat(path), most)  # opening a device may do something already
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
    """The bytes of such a file. Raises as ``open_regular``."""
    descriptor = open_regular(path, most)
    try:
        return read_descriptor(path, descriptor, most)
    finally:
        os.close(descriptor)


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text of such a file, its lines ended by ``\\n``. Raises ``UnicodeDecodeError``, and as ``open_regular``."""
    text = read_regular(path).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: Path, most: int = TEXTS) -> Path:
    """The path of a file that a library opens by itself. Raises as ``open_regular``."""
    os.close(open_regular(path, most))
    return path


def read_descriptor(path: Path, descriptor: int, most: int) -> bytes:
    """The bytes of an open file, at most ``most``, however it grows meanwhile. Raises ``CheckpointError``."""
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
    return CheckpointError(f"{path} has {size} bytes or more, and at most {most} are read")
