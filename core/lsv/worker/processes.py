"""The processes executor: one worker process per tensor-parallel rank, all on this machine."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from lsv.config import EngineConfig, Fit, OptionValue
from lsv.engine.executor import ReportProgress
from lsv.errors import ConfigError, EngineDied, LsvError
from lsv.plugins.catalog import Catalog
from lsv.processes.child import Child
from lsv.processes.ports import free_port
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.worker.channel import Loading, Order, Ran, Report, Run, Start, Started

_STOP_SECONDS = 5.0
_LAST_SECONDS = 1.0
"""What a worker gets to end by itself once it has closed its channel."""


class Rank(Child[Order, Report]):
    """The worker process of one rank."""

    def __init__(self, start: Start) -> None:
        super().__init__("lsv.worker.remote", start, Report)
        self.rank = start.rank

    def send(self, message: Order, seconds: float | None = None) -> None:
        """Raises like ``receive`` when the worker has ended."""
        try:
            super().send(message, seconds)
        except OSError:
            while True:
                self.receive()  # its last report says why, and its end comes after that

    def receive(self, seconds: float | None = None) -> Report:
        """The next report; raises what the worker reports as its end, or ``EngineDied`` when it is gone."""
        try:
            return super().receive(seconds)
        except EOFError:
            self.end(_LAST_SECONDS)
            raise EngineDied(f"the worker of rank {self.rank} is gone (exit code {self.code})") from None


class ProcessesExecutor:
    """Sends every plan to every rank and answers with rank 0's result. Any rank's end is the end of all."""

    def __init__(self, catalog: Catalog) -> None:
        self.depth = 1
        self._ranks: list[Rank] = []
        self._step = 0

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        """Start a process per rank and load the model in all; raises ``StartError``.

        The workers die with the calling thread, so it must live as long as the executor.
        """
        self.depth = config.in_flight
        address = f"127.0.0.1:{free_port()}"
        with self._one_fate():
            for rank in range(config.topology.tensor):
                self._ranks.append(Rank(Start(config, rank, address)))
            return self._await_started(progress)

    def submit(self, plan: StepPlan) -> None:
        self._step = plan.step
        with self._one_fate():
            for rank in self._ranks:
                rank.send(Run(plan))

    def collect(self, timeout: float) -> StepResult:
        """Rank 0's result; raises ``EngineDied`` when a rank is gone or ``timeout`` seconds have passed."""
        with self._one_fate():
            for _, report in self._reports(timeout):
                if isinstance(report, Ran):
                    return report.result
        raise AssertionError("reports go on until there is a result or an error")

    def control(self, order: str, arguments: Mapping[str, OptionValue]) -> None:
        """``reset`` finds nothing to forget: cached blocks are the scheduler's. Other orders are unknown."""
        if order != "reset":
            raise ConfigError(f"the processes executor does not know the order {order!r}; it knows: reset")

    def stop(self) -> None:
        """Close the channels, which ends the workers; those that do not end are killed."""
        for rank in self._ranks:
            rank.channel.close()
        deadline = time.monotonic() + _STOP_SECONDS
        for rank in self._ranks:
            rank.end(max(0.0, deadline - time.monotonic()))
        self._ranks = []

    def _await_started(self, progress: ReportProgress) -> Fit:
        fits: dict[int, Fit] = {}
        for rank, report in self._reports(None):
            if isinstance(report, Started):
                fits[rank] = report.fit
            elif isinstance(report, Loading) and rank == 0:
                progress(report.stage, report.done, report.total)
            if len(fits) == len(self._ranks):
                break
        return msgspec.structs.replace(fits[0], cores=frozenset[int]().union(*(fit.cores for fit in fits.values())))

    def _reports(self, timeout: float | None) -> Iterator[tuple[int, Report]]:
        """What the ranks report, as it comes; raises ``EngineDied`` once ``timeout`` seconds have passed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank, selectors.EVENT_READ, rank)
            while True:
                heard: list[Rank] = [rank for rank in self._ranks if rank.channel.pending]
                if not heard:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    heard = [key.data for key, _ in selector.select(left)]
                if not heard:
                    raise EngineDied(f"step {self._step} took more than {timeout:g} s: a worker hangs")
                for rank in heard:
                    yield rank.rank, rank.receive()

    @contextmanager
    def _one_fate(self) -> Iterator[None]:
        """An error of one rank ends all of them."""
        try:
            yield
        except LsvError:
            for rank in self._ranks:
                rank.send_signal(signal.SIGKILL)
            self.stop()
            raise
