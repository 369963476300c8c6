"""Collectives between all devices of a platform: one process each, as in tensor parallelism."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import msgspec

from lsv.config import OptionValue
from lsv.errors import LsvError

_SECONDS = 120.0
_PAUSE = 0.05


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank is told."""

    platform: str
    emulate: bool
    options: Mapping[str, OptionValue]
    plugins: tuple[str, ...]
    rank: int
    size: int
    address: str


class _Rank:
    """A process that carries out an order. What it prints goes to a file: a pipe could fill up and stop it."""

    def __init__(self, order: Order) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lsv.doctor.rank"],
            stdin=subprocess.PIPE, stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(msgspec.json.encode(order))

    def last_line(self) -> str:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


def measure_collectives(
    platform: str, *, emulate: bool, options: Mapping[str, OptionValue], plugins: tuple[str, ...], size: int
) -> dict[str, float]:
    """Metric -> value; microseconds of the smallest size, GB/s of what one rank brings for the others.

    Raises ``LsvError`` when a rank fails, with the last line it wrote.
    """
    address = f"127.0.0.1:{_free_port()}"
    with ExitStack() as stack:
        ranks = []
        for rank in range(size):
            order = Order(
                platform=platform, emulate=emulate, options=options, plugins=plugins, rank=rank, size=size,
                address=address,
            )  # fmt: skip
            ranks.append(_Rank(order))
            stack.callback(ranks[-1].close)
        _wait(ranks)
        return msgspec.json.decode(ranks[0].last_line(), type=dict[str, float])


def _wait(ranks: Sequence[_Rank]) -> None:
    """Until all have ended well; the first that has not ends the wait, since the others would wait for it."""
    deadline = time.monotonic() + _SECONDS
    while True:
        codes = [rank.process.poll() for rank in ranks]
        for number, code in enumerate(codes):
            if code:
                raise LsvError(f"rank {number} ended with {code}: {ranks[number].last_line()}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise LsvError(f"the ranks gave no answer in {_SECONDS:g} s")
        time.sleep(_PAUSE)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
