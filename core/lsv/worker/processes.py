"""The processes executor: one worker process per tensor-parallel rank, all on this machine."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from lsv.config import EngineConfig, Fit, OptionValue
from lsv.engine.executor import ReportProgress
from lsv.errors import ConfigError, EngineDied, LsvError
from lsv.plugins.catalog import Catalog
from lsv.processes.child import Child
from lsv.processes.folder import PrivateFolder
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv.worker.channel import Loading, Masked, Order, Ran, Report, Run, Start, Started

_STOP_SECONDS = 5.0
_LAST_SECONDS = 1.0
"""What a worker gets to end by itself once it has closed its channel."""


class Rank(Child[Order, Report]):
    """The worker process of one rank."""

    def __init__(self, start: Start) -> None:
        super().__init__("lsv.worker.remote", start, Report)
        self.rank = start.rank
        self.heard = time.monotonic()
        """When it reported last."""

    def send(self, message: Order, seconds: float | None = None) -> None:
        """Raises like ``receive`` when the worker has ended, and ``TimeoutError`` when it does not read."""
        try:
            super().send(message, seconds)
        except TimeoutError:
            raise
        except OSError:
            while True:
                self.receive(_LAST_SECONDS)  # its last report says why, and its end comes after that

    def receive(self, seconds: float | None = None) -> Report:
        """The next report; raises what the worker reports as its end, or ``EngineDied`` when it is gone."""
        try:
            report = super().receive(seconds)
        except EOFError:
            self.end(_LAST_SECONDS)
            raise EngineDied(f"the worker of rank {self.rank} is gone (exit code {self.code})") from None
        self.heard = time.monotonic()
        return report


class ProcessesExecutor:
    """Sends every plan to every rank and answers with rank 0's result. Any rank's end is the end of all."""

    def __init__(self, catalog: Catalog) -> None:
        self.depth = 1
        self._limit = 0.0
        self._folder: PrivateFolder | None = None
        self._ranks: list[Rank] = []
        self._step = 0
        self._settled = 0.0

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        """Start a process per rank and load the model in all; raises ``StartError``, or ``EngineDied`` where one hangs.

        The workers die with the calling thread, so it must live as long as the executor.
        """
        self.depth, self._limit = config.in_flight, config.step_timeout
        self._folder = PrivateFolder()
        address = str(self._folder.path / "rendezvous")
        with self._one_fate():
            for rank in range(config.topology.tensor):
                self._ranks.append(Rank(Start(config, rank, address)))
            return self._await_started(progress, config.load_timeout)

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        """Raises ``EngineDied`` when a rank is gone or has not taken the plan within the step timeout."""
        self._step = plan.step
        self._send(Run(plan))
        if masks is not None:
            self._send(Masked(masks()))

    def _send(self, order: Order) -> None:
        """Tell all ranks of the step."""
        with self._one_fate():
            for rank in self._ranks:
                try:
                    rank.send(order, self._limit)
                except TimeoutError:
                    raise self._hang(
                        f"rank {rank.rank} has not taken step {self._step} for {self._limit:g} s: its worker hangs"
                    ) from None

    def collect(self, timeout: float) -> StepResult:
        """Rank 0's result; raises ``EngineDied`` when a rank is gone or ``timeout`` seconds have passed."""
        deadline = time.monotonic() + timeout
        with self._one_fate():
            try:
                for _, report in self._reports(lambda: deadline):
                    if isinstance(report, Ran):
                        self._settled = time.monotonic()
                        return report.result
            except TimeoutError:
                raise self._hang(f"step {self._step} took more than {timeout:g} s: a worker hangs") from None
        raise AssertionError("reports go on until there is a result or an error")

    def check(self) -> None:
        """Raises ``EngineDied`` when a rank is gone or silent for longer than a step may take."""
        with self._one_fate():
            for rank in self._ranks:
                while rank.channel.ready:
                    rank.receive()
                if time.monotonic() - max(rank.heard, self._settled) > self._limit:
                    raise self._hang(f"rank {rank.rank} has said nothing for {self._limit:g} s: its worker hangs")

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
        if self._folder is not None:
            self._folder.remove()

    def _await_started(self, progress: ReportProgress, limit: float) -> Fit:
        """Wait for all ranks, each of which may be silent for ``limit`` seconds."""
        fits: dict[int, Fit] = {}

        def deadline() -> float:
            return limit + min(rank.heard for rank in self._ranks if rank.rank not in fits)

        try:
            for rank, report in self._reports(deadline):
                if isinstance(report, Started):
                    fits[rank] = report.fit
                elif isinstance(report, Loading) and rank == 0:
                    progress(report.stage, report.done, report.total)
                if len(fits) == len(self._ranks):
                    break
        except TimeoutError:
            late = ", ".join(str(rank.rank) for rank in self._ranks if rank.rank not in fits)
            raise self._hang(
                f"a worker hangs while loading: no progress of rank {late} for {limit:g} s (load_timeout)"
            ) from None
        return msgspec.structs.replace(fits[0], cores=frozenset[int]().union(*(fit.cores for fit in fits.values())))

    def _reports(self, deadline: Callable[[], float]) -> Iterator[tuple[int, Report]]:
        """What the ranks report, as it comes; raises ``TimeoutError`` when there is nothing by ``deadline``."""
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank, selectors.EVENT_READ, rank)
            while True:
                heard: list[Rank] = [rank for rank in self._ranks if rank.channel.pending]
                if not heard:
                    heard = [key.data for key, _ in selector.select(max(0.0, deadline() - time.monotonic()))]
                if not heard:
                    raise TimeoutError
                for rank in heard:
                    yield rank.rank, rank.receive()

    def _hang(self, what: str) -> EngineDied:
        """The error of ranks that hang; the log shows where they stand."""
        for rank in self._ranks:
            rank.dump_stacks()
        return EngineDied(what)

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
