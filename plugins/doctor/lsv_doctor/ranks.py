"""Collectives between all devices of a platform: one process each, as in tensor parallelism."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import msgspec

from lsv.config import OptionValue
from lsv_base.errors import LsvError
from lsv_base.processes.child import Child
from lsv_base.processes.folder import PrivateFolder
from lsv_base.processes.output import Output

_SECONDS = 120.0
_PAUSE = 0.05


class Order(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one rank is told."""

    platform: str
    emulate: bool
    options: Mapping[str, OptionValue]
    plugins: tuple[str, ...]
    rank: int
    size: int
    address: str


class Measured(msgspec.Struct, frozen=True, tag=True):
    """What a rank measured: metric -> value. Every rank sends it, just before it ends."""

    values: Mapping[str, float]


class _Rank(Child[Order, Measured]):
    """A process that carries out an order. What it prints is kept, since its last line says why it failed."""

    def __init__(self, order: Order) -> None:
        self._output = Output()
        super().__init__("lsv_doctor.rank", order, Measured, stdout=self._output.fileno(), stderr=subprocess.STDOUT)

    def last_line(self) -> str:
        return next(iter(self._output.last_lines(1)), "it printed nothing")

    def end(self, seconds: float = 0.0) -> None:
        super().end(seconds)
        self._output.close()


def measure_collectives(
    platform: str, *, emulate: bool, options: Mapping[str, OptionValue], plugins: tuple[str, ...], size: int
) -> dict[str, float]:
    """Metric -> value; microseconds of the smallest size, GB/s of what one rank brings for the others.

    Raises ``LsvError`` when a rank fails, with the last line it printed.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(PrivateFolder())
        ranks = []
        for rank in range(size):
            order = Order(
                platform=platform, emulate=emulate, options=options, plugins=plugins, rank=rank, size=size,
                address=str(folder.path / "rendezvous"),
            )  # fmt: skip
            ranks.append(stack.enter_context(_Rank(order)))
        _wait(ranks)
        return dict(ranks[0].receive(0.0).values)


def _wait(ranks: Sequence[_Rank]) -> None:
    """Wait until all have ended well. The first failure ends it: the other ranks would wait for that one."""
    deadline = time.monotonic() + _SECONDS
    while True:
        codes = [rank.code for rank in ranks]
        for number, code in enumerate(codes):
            if code:
                raise LsvError(f"rank {number} ended with {code}: {ranks[number].last_line()}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise LsvError(f"the ranks gave no answer in {_SECONDS:g} s")
        time.sleep(_PAUSE)
