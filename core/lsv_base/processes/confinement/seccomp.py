"""A filter of system calls for the whole process: seccomp(2) with a program of classic BPF.

What is not in ``calls.ALLOWED`` fails with EPERM, as if the account lacked the right, so that libraries go on without
it. What only an intruder would try ends the process with SIGSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence

from lsv_base.processes.confinement.calls import ALLOWED, FORBIDDEN, NUMBERS
from lsv_base.processes.confinement.kernel import ARM64, X86_64, call, machine, prctl

_PR_SET_NO_NEW_PRIVS = 38
_MODE_FILTER = 1
_ALL_THREADS = 1
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_AUDIT = {X86_64: 0xC000003E, ARM64: 0xC00000B7}
_X32 = 0x40000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# open(2): any way of writing or making a file; numbers that x86-64 and arm64 share
_WRITES = 0o3 | 0o100 | 0o1000 | 0o20000000
_CLONE_THREAD = 0x10000
_PRCTL = (15, 16, 0x53564D41)  # names of threads and of memory
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, bytes to read, blocking, close-on-exec

Instruction = tuple[int, int, int, int]


def install() -> None:
    """Filter the calls of all threads from now on. Raises ``OSError``, ``Unavailable``."""
    program = assemble(machine(), os.getpid())
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    code = ctypes.create_string_buffer(packed, len(packed))
    header = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(program), ctypes.addressof(code)), 16)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    call(NUMBERS["seccomp"][machine()], _MODE_FILTER, _ALL_THREADS, header)


def assemble(architecture: str, process: int) -> list[Instruction]:
    """The program for an architecture and the process of this id, which may send signals to itself alone."""
    numbers = {name: found[architecture] for name, found in NUMBERS.items() if architecture in found}
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT[architecture]),
        _end(_KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),  # the calls of x86-64 under their other numbers
        _end(_KILL),
    ]
    for name, number in numbers.items():
        if name in ALLOWED:
            program += _when(number, [_end(_ALLOW)])
        elif name in FORBIDDEN:
            program += _when(number, [_end(_KILL)])
    for name, body in _conditional(process).items():
        if name in numbers:
            program += _when(numbers[name], body)
    return [*program, _end(_error(errno.EPERM))]


def _conditional(process: int) -> dict[str, list[Instruction]]:
    """Calls that depend on their arguments, or that have an older form, which libraries then use."""
    older = [_end(_error(errno.ENOSYS))]
    return {
        "open": _unless_any(1, _WRITES),
        "openat": _unless_any(2, _WRITES),
        "openat2": older,
        "clone": [_argument(0), (_ANY_BIT, 1, 0, _CLONE_THREAD), _end(_error(errno.EPERM)), _end(_ALLOW)],
        "clone3": older,
        "kill": _one_of(0, [process]),
        "tgkill": _one_of(0, [process]),
        "prctl": _one_of(0, _PRCTL),
        "prlimit64": _one_of(0, [0, process]),
        "ioctl": _one_of(1, _IOCTL),
    }


def _when(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    return [(_EQUAL, 0, len(body), number), *body]


def _unless_any(argument: int, bits: int) -> list[Instruction]:
    return [_argument(argument), (_ANY_BIT, 0, 1, bits), _end(_error(errno.EACCES)), _end(_ALLOW)]


def _one_of(argument: int, values: Iterable[int]) -> list[Instruction]:
    allowed = [step for value in values for step in ((_EQUAL, 0, 1, value), _end(_ALLOW))]
    return [_argument(argument), *allowed, _end(_error(errno.EPERM))]


def _argument(index: int) -> Instruction:
    """Its lower half: both architectures are little-endian, and these arguments have 32 bits."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _end(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _error(code: int) -> int:
    return 0x00050000 | code
