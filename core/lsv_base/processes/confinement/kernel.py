"""System calls of Linux that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import platform

from lsv_base.processes.confinement.terms import Unavailable

X86_64, ARM64 = "x86_64", "aarch64"


def machine() -> str:
    """The architecture whose system calls this process makes. Raises ``Unavailable`` for one not known here."""
    found = platform.machine()
    if found not in (X86_64, ARM64) or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise Unavailable(f"it is not written for {found}")
    return found


def prctl(option: int, *values: int) -> None:
    """Raises ``OSError``."""
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(ctypes.c_int(option), *arguments):
        raise _failure()


def unshare(flags: int) -> None:
    """Raises ``OSError``."""
    if ctypes.CDLL(None, use_errno=True).unshare(ctypes.c_int(flags)):
        raise _failure()


def call(number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    """A system call; buffers go as their address. Returns its result; raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    passed = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        raise _failure()
    return result


def _failure() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
