"""Landlock: the files a process may still reach, named by folder. See landlock(7)."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress

from lsv_base.processes.confinement.kernel import call, machine
from lsv_base.processes.confinement.terms import Unavailable

# the same numbers on every architecture
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
# by version of Landlock: how many rights over files there are (all of them are taken away), and the size of the record
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def read_only(paths: Iterable[str]) -> None:
    """Only files in ``paths`` can be read, none written, made or run; no signals to others, no TCP.

    Holds for this thread and those it starts. Raises ``OSError``, ``Unavailable``.
    """
    machine()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise Unavailable(f"{threads - 1} threads run already, and it would not hold for them")
    version = _version()
    ruleset = call(_CREATE_RULESET, *_ruleset(version), 0)
    try:
        for path in paths:
            _allow(ruleset, path)
        call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _version() -> int:
    return call(_CREATE_RULESET, 0, 0, _VERSION)


def _ruleset(version: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    rights = (1 << _RIGHTS[min(version, 5)]) - 1
    fields = [rights, _BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS]
    known = 1 + (version >= 4) + (version >= 6)
    packed = struct.pack(f"={known}Q", *fields[:known])
    return ctypes.create_string_buffer(packed, len(packed)), len(packed)


def _allow(ruleset: int, path: str) -> None:
    """Reading what is at a path; nothing where there is nothing."""
    with suppress(OSError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rights = _READ_FILE | (_READ_DIR if stat.S_ISDIR(os.fstat(place).st_mode) else 0)
            packed = struct.pack("=Qi", rights, place)
            call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.create_string_buffer(packed, len(packed)), 0)
        finally:
            os.close(place)
