"""Privileges that a process gives up for good, and its memory, which no other process of the account may read."""

from __future__ import annotations

import ctypes
import struct

from lsv_base.processes.confinement.kernel import ARM64, X86_64, call, machine, prctl

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_CAPSET = {X86_64: 126, ARM64: 91}
_CAPABILITY_VERSION_3 = 0x20080522


def drop() -> None:
    """Rights beyond those of the account: root's, those over own namespaces, those of programs that would be started.

    Raises ``OSError``, ``Unavailable``.
    """
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), 8)
    none = ctypes.create_string_buffer(24)
    call(_CAPSET[machine()], header, none)
    prctl(_PR_SET_DUMPABLE, 0)
