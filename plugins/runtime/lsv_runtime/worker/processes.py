"""Executors of several ranks: what they have in common, and the one whose ranks are processes of this machine."""

from __future__ import annotations

import abc
import math
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import ReportProgress
from lsv.plugins.catalog import Catalog
from lsv.scheduler.plan import AwaitMasks, StepPlan, StepResult
from lsv_base.errors import EngineDied, LsvError, from_record
from lsv_base.processes.child import Child
from lsv_base.processes.folder import PrivateFolder
from lsv_base.processes.orders import WorkerOrder, encode_order, name_of
from lsv_base.processes.peer import Peer
from lsv_runtime.worker.channel import (
    Control,
    Controlled,
    Encoded,
    Loading,
    Masked,
    Order,
    Ran,
    Report,
    Run,
    Sampled,
    Start,
    Started,
)

_STOP_SECONDS = 5.0
_IDLE_SECONDS = 0.5
"""After which an engine whose ranks say nothing while they load sees to its own clients, and whether it is to end."""
_LAST_SECONDS = 1.0
"""What a worker gets to end by itself once it has closed its channel."""
_BESIDE_SECONDS = 0.5
"""In which a rank that is gone is found to be so, where another one has failed of that."""


class RankLink(Peer[Order, Report]):
    """The worker of one rank, wherever it runs."""

    def __init__(self, rank: int, end: socket.socket, where: str = "") -> None:
        """``where`` says for messages on which machine it runs, unless it is this one."""
        super().__init__(end, Report)
        self._know(rank, where)

    def _know(self, rank: int, where: str = "") -> None:
        self.rank, self.where = rank, where
        self.heard = time.monotonic()
        """When it reported last."""
        self.fate: Literal["", "failed", "gone"] = ""
        """How it has ended: by an error that it reports, or without a word."""

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
            self.fate = "gone"
            raise EngineDied(f"the worker of rank {self.rank}{self.where} is gone{self.how_it_went()}") from None
        except LsvError:
            self.fate = "failed"
            raise
        self.heard = time.monotonic()
        return report

    def how_it_went(self) -> str:
        """A clause for messages about a worker that is gone."""
        return ""

    def dump_stacks(self) -> None:
        """Have it show in its log where it stands, where that can be had."""

    def abandon(self) -> None:
        """Have it end at once, without waiting for that."""

    def end(self, seconds: float = 0.0) -> None:
        """Close the channel, which asks it to end, and give it so many seconds. May be called again."""
        self.channel.close()


class Rank(Child[Order, Report], RankLink):
    """A worker that is a child of this process."""

    def __init__(self, start: Start) -> None:
        Child.__init__(self, "lsv_runtime.worker.remote", start, Report)
        self._know(start.rank)

    def how_it_went(self) -> str:
        self.end(_LAST_SECONDS)
        return f" (exit code {self.code})"

    def abandon(self) -> None:
        self.send_signal(signal.SIGKILL)


class RanksExecutor(abc.ABC):
    """Sends every plan to every rank, answers with the result of ``Topology.reporter`` and tells the stages before that
    rank's what was sampled. Any rank's end is the end of all.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.depth = 1
        self._limit = self._load_limit = 0.0
        self._ranks: list[RankLink] = []
        self._earlier: list[RankLink] = []
        self._encoding: deque[bool] = deque()
        self._unencoded: deque[Mapping[bytes, str]] = deque()
        self._step = 0
        self._settled = 0.0
        self.progress: ReportProgress
        """What ``start`` was given, for what ``launch`` waits for."""

    @abc.abstractmethod
    def launch(self, config: EngineConfig) -> Iterator[RankLink]:
        """Start a worker for each rank, in their order; each is told its ``Start``. Raises ``StartError``."""

    def start(self, config: EngineConfig, progress: ReportProgress) -> Fit:
        """Start the workers and load the model in all; raises ``StartError``, or ``EngineDied`` where one hangs.

        The workers die with the calling thread, so it must live as long as the executor.
        """
        self.depth, self.progress = config.in_flight, progress
        self._limit, self._load_limit = config.step_timeout, config.load_timeout
        with self._one_fate():
            self._ranks.extend(self.launch(config))
            self._earlier = self._ranks[: config.topology.reporter]
            return self._await_started(progress, config.load_timeout)

    def submit(self, plan: StepPlan, masks: AwaitMasks | None = None) -> None:
        """Raises ``EngineDied`` when a rank is gone or has not taken the plan within the step timeout."""
        self._step = plan.step
        self._encoding.append(bool(plan.encode and self._earlier))
        self._send(Run(plan), self._ranks)
        if masks is not None:
            self._send(Masked(masks()), self._ranks)

    def _send(self, order: Order, ranks: Sequence[RankLink]) -> None:
        """Tell ranks of the step."""
        with self._one_fate():
            for rank in ranks:
                try:
                    rank.send(order, self._limit)
                except TimeoutError:
                    raise self._hang(
                        f"rank {rank.rank} has not taken step {self._step} for {self._limit:g} s: its worker hangs"
                    ) from None

    def collect(self, timeout: float) -> StepResult:
        """The oldest result; raises ``EngineDied`` when a rank is gone or ``timeout`` seconds have passed."""
        result = self._await_result(time.monotonic() + timeout, timeout)
        if self._earlier:
            self._send(Sampled(result.tokens, result.drafts), self._earlier)
        return result

    def _await_result(self, deadline: float, timeout: float) -> StepResult:
        """The last stage's result, with what the first one says of media where the plan has any to encode."""
        result: StepResult | None = None
        encoding = self._encoding.popleft()
        with self._one_fate():
            try:
                for _, report in self._reports(lambda: deadline):
                    if isinstance(report, Encoded):
                        self._unencoded.append(report.unencoded)
                    elif isinstance(report, Ran):
                        result = report.result
                    if result is not None and (self._unencoded or not encoding):
                        self._settled = time.monotonic()
                        unencoded = self._unencoded.popleft() if encoding else {}
                        return msgspec.structs.replace(result, unencoded=unencoded) if unencoded else result
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

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        """See ``Worker.control``; raises what the first rank refuses it with, once all have answered."""
        self._send(Control(*encode_order(order)), self._ranks)
        answers: dict[int, Controlled] = {}
        limit = self._load_limit if order.announces else self._limit
        deadline = time.monotonic() + limit
        with self._one_fate():
            try:
                for rank, report in self._reports(lambda: deadline):
                    if isinstance(report, Controlled):
                        answers[rank] = report
                    if len(answers) == len(self._ranks):
                        break
            except TimeoutError:
                raise self._hang(f"the order {name_of(order)} took more than {limit:g} s: a worker hangs") from None
        errors = [answers[rank].error for rank in sorted(answers)]
        refused = next((error for error in errors if error is not None), None)
        if refused is not None:
            raise from_record(refused)
        return [answers[rank].answer for rank in sorted(answers)]

    def stop(self) -> None:
        """Close the channels, which ends the workers; those that do not end are killed."""
        for rank in self._ranks:
            rank.channel.close()
        deadline = time.monotonic() + _STOP_SECONDS
        for rank in self._ranks:
            rank.end(max(0.0, deadline - time.monotonic()))
        self._ranks, self._earlier = [], []

    def _await_started(self, progress: ReportProgress, limit: float) -> Fit:
        """Wait for all ranks, each of which may be silent for ``limit`` seconds."""
        fits: dict[int, Fit] = {}
        stage = "starting", 0, 0

        def deadline() -> float:
            return limit + min(rank.heard for rank in self._ranks if rank.rank not in fits)

        def idle() -> None:
            progress(*stage)

        try:
            for rank, report in self._reports(deadline, idle):
                if isinstance(report, Started):
                    fits[rank] = report.fit
                elif isinstance(report, Loading) and rank == 0:
                    stage = report.stage, report.done, report.total
                    progress(*stage)
                if len(fits) == len(self._ranks):
                    break
        except TimeoutError:
            late = ", ".join(str(rank.rank) for rank in self._ranks if rank.rank not in fits)
            raise self._hang(
                f"a worker hangs while loading: no progress of rank {late} for {limit:g} s (load_timeout)"
            ) from None
        cores = frozenset[int]().union(*(fit.cores for fit in fits.values()))
        return msgspec.structs.replace(fits[len(fits) - 1], cores=cores, encoder_parts=fits[0].encoder_parts)

    def _reports(
        self, deadline: Callable[[], float], idle: Callable[[], None] | None = None
    ) -> Iterator[tuple[int, Report]]:
        """What the ranks report, as it comes; ``idle`` is called whenever nothing has come for a moment.

        Raises ``TimeoutError`` when there is nothing by ``deadline``.
        """
        longest = math.inf if idle is None else _IDLE_SECONDS
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank, selectors.EVENT_READ, rank)
            while True:
                heard: list[RankLink] = [rank for rank in self._ranks if rank.channel.pending]
                if not heard:
                    left = max(0.0, deadline() - time.monotonic())
                    heard = [key.data for key, _ in selector.select(min(left, longest))]
                if not heard:
                    if idle is None or left <= longest:
                        raise TimeoutError
                    idle()
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
        except LsvError as error:
            cause = self._find_cause(error)
            for rank in self._ranks:
                rank.abandon()
            self.stop()
            raise cause from None

    def _find_cause(self, error: LsvError) -> LsvError:
        """Where a rank has reported an error: what another one was refused, or that it is gone, if so, since whatever
        both compute together fails of that.
        """
        if {rank.fate for rank in self._ranks} != {"", "failed"} or not isinstance(error, EngineDied):
            return error
        deadline = time.monotonic() + _BESIDE_SECONDS
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                if not rank.fate:
                    selector.register(rank, selectors.EVENT_READ, rank)
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for beside in (key.data for key, _ in ready):
                    try:
                        beside.receive()
                    except LsvError as its:
                        if beside.fate == "gone" or not isinstance(its, EngineDied):
                            return its
                        selector.unregister(beside)
        return error


class ProcessesExecutor(RanksExecutor):
    """One worker process per rank, all on this machine; they meet in a folder of this user's alone."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._folder: PrivateFolder | None = None

    def launch(self, config: EngineConfig) -> Iterator[RankLink]:
        self._folder = PrivateFolder()
        address = str(self._folder.path / "rendezvous")
        for rank in range(config.topology.ranks):
            yield Rank(Start(config, rank, address))

    def stop(self) -> None:
        super().stop()
        if self._folder is not None:
            self._folder.remove()
