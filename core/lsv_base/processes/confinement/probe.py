"""A side process that tries what it may not: ``lsv doctor`` and the tests ask it."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable, Iterator

import msgspec

from lsv_base.processes.confinement.terms import Measure, Terms
from lsv_base.processes.side.main import Loaded, run
from lsv_base.processes.side.process import Kind, SideProcess

_MIB = 1 << 20
_SECONDS = 10.0


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first command: it has nothing to load."""

    readable: tuple[str, ...] = ()


class Try(msgspec.Struct, frozen=True, tag=True):
    """Try something of ``_ATTEMPTS``, with what it takes."""

    what: str
    given: str = ""


class Tried(msgspec.Struct, frozen=True, tag=True):
    """What came of it: "done", or the name of the error."""

    outcome: str


def probe(terms: Terms, readable: tuple[str, ...] = ()) -> SideProcess[Begin | Try, Tried]:
    """A side process that tries what it is told; not started yet."""
    return SideProcess(Kind("tries what side processes may not", __name__, Tried, terms), Begin(readable))


def find_measures(memory: int = 256 * _MIB) -> tuple[Measure, ...]:
    """What side processes are confined by on this machine. Raises ``LsvError`` where none can be started."""
    process = probe(Terms(memory, _SECONDS))
    process.start()
    try:
        process.initialize()
    finally:
        process.end()
    return process.measures


def _load(begin: Begin) -> Loaded:
    return Loaded(_carry_out, begin.readable)


def _carry_out(command: Try) -> Iterator[Tried]:
    try:
        _ATTEMPTS[command.what](command.given)
    except OSError as cause:
        yield Tried(type(cause).__name__)
    else:
        yield Tried("done")


def _connect(port: str) -> None:
    with socket.create_connection(("127.0.0.1", int(port)), 5):
        pass


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read()


def _fork(_: str) -> None:
    if os.fork() == 0:
        os._exit(0)


def _signal(process: str) -> None:
    os.kill(int(process), 0)


def _open_many(count: str) -> None:
    for _ in range(int(count)):
        os.dup(2)


def _fill(mebibytes: str) -> None:
    bytearray(int(mebibytes) * _MIB)


def _spin(_: str) -> None:
    while True:
        pass


def _trace(_: str) -> None:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)


_ATTEMPTS: dict[str, Callable[[str], object]] = {
    "connect": _connect,
    "write": _write,
    "read": _read,
    "fork": _fork,
    "signal": _signal,
    "run": lambda path: os.execv(path, [path]),
    "trace": _trace,
    "open": _open_many,
    "fill": _fill,
    "spin": _spin,
    "thread": lambda _: __import__("threading").Thread(target=int).start(),
}


if __name__ == "__main__":
    sys.exit(run("probe", Begin | Try, _load))
